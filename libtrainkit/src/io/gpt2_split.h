#pragma once
/// The first half of GPT-2's tokenizer: text to pieces, within which pairs of bytes are then merged.

#include <cstddef>
#include <string_view>

namespace trainkit::detail {

/// Length of the piece that begins at text[at], at < text.size(); 0 if the text is not UTF-8 there. Pieces are the
/// matches, one after another, of GPT-2's pattern:
///   '(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
/// A piece that is not valid UTF-8 to its end may be returned shorter; the next call then returns 0.
size_t gpt2_piece(std::string_view text, size_t at);

}  // namespace trainkit::detail
