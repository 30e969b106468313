#include "text/gpt2_split.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>

#include "core/base/utf8.h"

namespace trainkit::detail {
namespace {

enum Class : uint8_t { kOther, kLetter, kNumber, kSpace, kInvalid };

struct Range {
  uint32_t first;
  uint32_t last;
  Class members;
};

constexpr Range kRanges[] = {
#include "text/unicode_classes.inc"
};

constexpr Class search(uint32_t code_point) {
  const Range* range =
      std::partition_point(std::begin(kRanges), std::end(kRanges), [&](const Range& r) { return r.last < code_point; });
  return range != std::end(kRanges) && range->first <= code_point ? range->members : kOther;
}

constexpr std::array<Class, 128> kAscii = [] {
  std::array<Class, 128> table = {};
  for (uint32_t c = 0; c < 128; ++c) table[c] = search(c);
  return table;
}();

/// Returns the class of the character at text[at], and its size in bytes in `length`.
Class classify(std::string_view text, size_t at, size_t& length) {
  const auto first = static_cast<unsigned char>(text[at]);
  if (first < 0x80) return length = 1, kAscii[first];
  uint32_t code_point = 0;
  length = decode_utf8(text.substr(at, 4), code_point);
  return length == 0 ? kInvalid : search(code_point);
}

/// Returns the end of the run of `wanted` characters that begins at `at`.
size_t run_end(std::string_view text, size_t at, Class wanted) {
  size_t length = 0;
  while (at < text.size() && classify(text, at, length) == wanted) at += length;
  return at;
}

size_t contraction(std::string_view rest) {
  for (std::string_view ending : {"'s", "'d", "'m", "'t", "'ll", "'ve", "'re"}) {
    if (rest.starts_with(ending)) return ending.size();
  }
  return 0;
}

/// Whether text[at] belongs to a `special` that begins before it.
bool is_within(std::string_view text, size_t at, std::string_view special) {
  if (special.empty()) return false;
  const size_t first = at - std::min(at, special.size() - 1);
  return text.substr(first, at - first + special.size() - 1).find(special) != text.npos;
}

}  // namespace

size_t piece_length(std::string_view text, size_t at) {
  if (text[at] == '\'') {
    if (const size_t length = contraction(text.substr(at, 3))) return length;
  }
  size_t length = 0;
  const Class first = classify(text, at, length);
  if (first == kInvalid) return 0;
  if (first != kSpace) return run_end(text, at, first) - at;

  // One space is part of the next word.
  if (text[at] == ' ' && at + 1 < text.size()) {
    const Class next = classify(text, at + 1, length);
    if (next == kInvalid) return 1;
    if (next != kSpace) return run_end(text, at + 1, next) - at;
  }
  // The last of several spaces belongs to the next word: \s+(?!\S) backtracks by one character.
  size_t end = at;
  size_t last = at;
  while (end < text.size() && classify(text, end, length) == kSpace) {
    last = end;
    end += length;
  }
  return (end == text.size() || last == at ? end : last) - at;
}

std::optional<size_t> find_cut(std::string_view text, size_t at, size_t end, std::string_view special) {
  text = text.substr(0, end);
  while (at < end && (text[at] & 0xc0) == 0x80) ++at;  // the rest of a character
  Class before = kSpace;
  for (size_t length = 0; at < end; at += length) {
    const Class here = classify(text, at, length);
    if (here == kInvalid) return std::nullopt;
    const bool may_contract = here == kLetter && before == kOther && text[at - 1] == '\'';
    if (before != kSpace && here != before && !may_contract && !is_within(text, at, special)) return at;
    before = here;
  }
  return std::nullopt;
}

}  // namespace trainkit::detail
