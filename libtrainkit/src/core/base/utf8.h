#pragma once
/// Strict UTF-8 as defined by Unicode: no overlong forms, no surrogates, no code points above U+10FFFF.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace trainkit {

/// Decodes the well-formed sequence at the start of `text` into `code_point` and returns its length in bytes. Returns 0
/// if `text` is empty or does not start with a well-formed sequence.
size_t decode_utf8(std::string_view text, uint32_t& code_point);

/// Appends `code_point`, a Unicode scalar value, to `text`.
void append_utf8(std::string& text, uint32_t code_point);

/// Returns the position of the first byte of `text` outside a well-formed sequence; text.size() if there is none.
size_t find_invalid_utf8(std::string_view text);

}  // namespace trainkit
