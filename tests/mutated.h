#pragma once
/// Damaged files, selected by number.

#include <algorithm>
#include <string>

#include "trainkit/core/random.h"

namespace trainkit::test {

/// `bytes` with one to four changes after `first`: a bit, a byte, eight bytes, or copied bytes. The same for equal
/// numbers.
inline std::string mutated(std::string bytes, int number, size_t first = 0) {
  RandomStream random(hash_key(7, number));
  const auto place = [&] { return first + random.below(bytes.size() - first); };
  for (uint64_t edits = 1 + random.below(4); edits > 0; --edits) {
    const size_t at = place();
    switch (random.below(5)) {
      case 0:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << random.below(8)));
        break;
      case 1:
        bytes[at] = static_cast<char>(random.below(256));
        break;
      case 2:
        bytes.replace(at, std::min<size_t>(8, bytes.size() - at),
                      std::string(std::min<size_t>(8, bytes.size() - at), random.below(2) ? '\xff' : '\0'));
        break;
      case 3:
        bytes[at] = static_cast<char>(bytes[at] + (random.below(2) ? 1 : -1));
        break;
      default: {
        const size_t from = place(), size = std::min<size_t>(8, bytes.size() - std::max(at, from));
        bytes.replace(at, size, std::string(bytes, from, size));
      }
    }
  }
  return bytes;
}

}  // namespace trainkit::test
