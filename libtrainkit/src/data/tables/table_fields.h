#pragma once
/// Fields of tables as numbers.

#include <absl/strings/numbers.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainkit/io/text_file.h"

namespace trainkit::detail {

inline bool is_missing(const std::vector<std::string>& missing, std::string_view field) {
  return std::find(missing.begin(), missing.end(), trimmed(field)) != missing.end();
}

/// Parses a finite decimal number.
inline std::optional<double> number_of(std::string_view field) {
  const std::string_view text = trimmed(field);
  double value = 0;
  if (!absl::SimpleAtod({text.data(), text.size()}, &value) || !std::isfinite(value)) return std::nullopt;
  return value;
}

}  // namespace trainkit::detail
