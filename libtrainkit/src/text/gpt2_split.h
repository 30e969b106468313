#pragma once
/// Splits text into pieces, the first half of GPT-2's tokenizer. Bytes are merged only within a piece.

#include <cstddef>
#include <string_view>

namespace trainkit::detail {

/// Returns the length of the piece that begins at text[at], at < text.size(), or 0 if the text is not UTF-8 there.
/// Pieces are consecutive matches of GPT-2's pattern:
///   '(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
/// A piece with invalid UTF-8 may be returned shortened; the next call then returns 0.
size_t gpt2_piece(std::string_view text, size_t at);

}  // namespace trainkit::detail
