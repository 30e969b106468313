#pragma once
/// Strict JSON parsing for the library's own sources.

#include <absl/status/statusor.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "trainkit/core/error.h"

namespace trainkit::detail {

/// Parses all of `text`. In addition to the grammar, rejects NUL bytes, duplicate keys and nesting deeper than
/// `max_depth`. Errors are copies of `blame` with the problem, and with the byte offset appended to `where`.
absl::StatusOr<nlohmann::json> parse_strict_json(std::string_view text, const Error& blame, int max_depth = 16);

/// Returns whether `text` contains a NUL byte. nlohmann's parser treats it as the end of the text and ignores the rest.
/// Callers that use that parser directly, not parse_strict_json, must check this first.
bool holds_nul(std::string_view text);

/// Returns the number as int64_t; nullopt if it is not an integer or does not fit. nlohmann's get<int64_t> would
/// convert such a value silently.
template <class Json>
std::optional<int64_t> json_integer(const Json& value) {
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() && value.template get<uint64_t>() > uint64_t{INT64_MAX}) return std::nullopt;
  return value.template get<int64_t>();
}

/// Returns nlohmann's parse_error text without its prefix and position: "unexpected end of input".
std::string json_problem(const std::exception& error);

}  // namespace trainkit::detail
