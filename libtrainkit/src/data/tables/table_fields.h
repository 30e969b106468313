#pragma once
/// Fields of tables as numbers.

#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trainkit::detail {

inline std::string_view without_blanks(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t"), end = text.find_last_not_of(" \t");
  return begin == std::string_view::npos ? std::string_view() : text.substr(begin, end - begin + 1);
}

inline bool is_missing(const std::vector<std::string>& missing, std::string_view field) {
  return std::find(missing.begin(), missing.end(), without_blanks(field)) != missing.end();
}

/// Parses a finite decimal number.
inline std::optional<double> number_of(std::string_view field) {
  const std::string_view text = without_blanks(field);
  double value = 0;
  if (!absl::SimpleAtod({text.data(), text.size()}, &value) || !std::isfinite(value)) return std::nullopt;
  return value;
}

}  // namespace trainkit::detail
