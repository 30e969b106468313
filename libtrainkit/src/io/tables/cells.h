#pragma once
/// Parses the fields of a table, and looks for its columns.

#include <absl/status/statusor.h>

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trainkit/io/text_file.h"

namespace trainkit::detail {

/// Parses a field as an integer. `bad` makes the error from a problem and what was expected.
template <class Bad>
absl::StatusOr<int64_t> integer_of(std::string_view field, Bad bad) {
  const std::string_view text = trimmed(field);
  int64_t number = 0;
  const auto [stopped, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc::result_out_of_range) return bad("out of range", "a 64-bit integer");
  if (error != std::errc() || stopped != text.data() + text.size()) return bad("not a whole number", "digits");
  return number;
}

/// Parses a field as a finite number.
template <class Bad>
absl::StatusOr<double> number_of(std::string_view field, Bad bad) {
  double number = 0;
  if (!parse_number(trimmed(field), number)) return bad("not a number", "a finite number");
  return number;
}

/// Makes the error for a column that a table lacks.
absl::Status no_such_column(const std::string& path, const std::string& kind, const std::vector<std::string>& columns,
                            std::string_view name);

}  // namespace trainkit::detail
