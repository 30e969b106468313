#pragma once
// Digests as bytes, for files that hold many of them.

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <string_view>

namespace trainkit::detail {

using DigestBytes = std::array<uint8_t, 16>;

/// Returns the bytes of Digest::hex(), zeros if `hex` is empty.
inline DigestBytes digest_bytes(std::string_view hex) {
  DigestBytes bytes = {};
  for (size_t i = 0; i < std::min(bytes.size(), hex.size() / 2); ++i) {
    std::from_chars(hex.data() + 2 * i, hex.data() + 2 * i + 2, bytes[i], 16);
  }
  return bytes;
}

}  // namespace trainkit::detail
