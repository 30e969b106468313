#pragma once
/// UTF-8, strictly as Unicode defines it: no overlong forms, no surrogates, nothing above U+10FFFF.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace trainkit {

/// Bytes of the well-formed sequence at the start of `text`, whose code point is written to `code_point`; 0 if `text`
/// is empty or does not begin with one.
size_t decode_utf8(std::string_view text, uint32_t& code_point);

/// Appends `code_point`, a Unicode scalar value, to `text`.
void append_utf8(std::string& text, uint32_t code_point);

/// Position of the first byte of `text` that is not part of a well-formed sequence; text.size() if there is none.
size_t find_invalid_utf8(std::string_view text);

}  // namespace trainkit
