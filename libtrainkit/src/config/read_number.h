#pragma once
/// Numbers of flags and of configuration files. Strict: no locale, hexadecimal, octal, spaces, underscores or
/// infinities.

#include <cstdint>
#include <string_view>

namespace trainkit::detail {

enum class Reading { kOk, kSyntax, kRange, kNotFinite };

Reading read_number(std::string_view text, int& value);
Reading read_number(std::string_view text, int64_t& value);
Reading read_number(std::string_view text, uint64_t& value);
Reading read_number(std::string_view text, double& value);

/// Reads "90" or "1h30m". Units may come in any order.
Reading read_seconds(std::string_view text, double& seconds);

/// Whether YAML 1.2's core schema reads the unquoted `text` as a number, including 0x10, .inf and .nan.
bool looks_like_number(std::string_view text);

}  // namespace trainkit::detail
