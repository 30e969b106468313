#pragma once
/// Splits a text as GPT-2's pattern does.

#include <cstddef>
#include <optional>
#include <string_view>

namespace trainkit::detail {

/// Returns the length of the piece that begins at text[at], at < text.size(), or 0 if the text is not UTF-8 there.
/// Bytes are merged only within a piece. Pieces are consecutive matches of GPT-2's pattern:
///   '(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
/// A piece with invalid UTF-8 may be returned shortened; the next call then returns 0.
size_t piece_length(std::string_view text, size_t at);

// Note [Parts of a text]
//
// Threads encode parts of a text, so a text may be cut only where its pieces are cut whatever surrounds the place.
//
// In GPT-2's pattern a piece is a run of one class (letters, numbers, white space, others), maybe after one space, or a
// contraction: "'" and letters. So no piece has two neighbours of different classes of which the first is neither white
// space nor a "'" before a letter: between such neighbours every text is cut. The pieces after the cut do not depend on
// what precedes it, because the pattern never looks back. Those before it do not depend on what follows: the last one
// is a run that ends at the other class as at the end of a text, and \s+(?!\S) looks at the next character only after
// white space. A special token is found before the pieces, so a cut must not divide one.

/// Returns the first place in text[at, end) after at least one character at which the text may be cut; nullopt if there
/// is none or the text is not UTF-8. `special` is the special token; empty: none. See Note [Parts of a text].
std::optional<size_t> find_cut(std::string_view text, size_t at, size_t end, std::string_view special);

}  // namespace trainkit::detail
