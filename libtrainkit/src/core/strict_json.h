#pragma once
/// JSON read without surprises, for the library's own sources.

#include <absl/status/statusor.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "trainkit/core/error.h"

namespace trainkit::detail {

/// Parses all of `text`. Beyond the grammar it refuses duplicate keys and nesting deeper than `max_depth`. Errors are
/// `blame` with problem, and the byte after its `where`.
absl::StatusOr<nlohmann::json> parse_strict_json(std::string_view text, const Error& blame, int max_depth = 16);

/// Whether `text` holds a NUL byte. nlohmann's parser takes it for the end of the text and what follows for nothing:
/// whoever calls that parser instead of parse_strict_json asks this first.
bool holds_nul(std::string_view text);

/// The number, or nullopt if it is no integer or not one of 64 bits with a sign, to which nlohmann's get<int64_t> would
/// bring it somehow.
template <class Json>
std::optional<int64_t> json_integer(const Json& value) {
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() && value.template get<uint64_t>() > uint64_t{INT64_MAX}) return std::nullopt;
  return value.template get<int64_t>();
}

/// nlohmann's parse_error text without its prefix and position: "unexpected end of input".
std::string json_problem(const std::exception& error);

}  // namespace trainkit::detail
