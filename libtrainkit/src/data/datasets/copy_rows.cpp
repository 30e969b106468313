#include "data/datasets/copy_rows.h"

#include <algorithm>

#include "trainkit/core/vectorized.h"

namespace trainkit {
namespace {

constexpr size_t kAhead = 8;

// The size is known at compile time, so the compiler replaces memcpy by a few moves.
template <int64_t kBytes>
void copy_small(const std::byte* table, std::span<const RowKey> keys, std::byte* to) {
  for (size_t i = 0; i < keys.size(); ++i) {
    if (i + kAhead < keys.size()) __builtin_prefetch(table + keys[i + kAhead].index * kBytes);
    std::memcpy(to + i * kBytes, table + keys[i].index * kBytes, kBytes);
  }
}

}  // namespace

void copy_rows(const std::byte* table, std::span<const RowKey> keys, const BatchView& out, size_t field) {
  const int64_t bytes = out.row_bytes(field);
  std::byte* to = out.data(field);
  switch (bytes) {
    case 1:
      return copy_small<1>(table, keys, to);
    case 2:
      return copy_small<2>(table, keys, to);
    case 4:
      return copy_small<4>(table, keys, to);
    case 8:
      return copy_small<8>(table, keys, to);
    case 16:
      return copy_small<16>(table, keys, to);
    default:
      break;
  }
  for (size_t i = 0; i < std::min(kAhead, keys.size()); ++i) prefetch_bytes(table + keys[i].index * bytes, bytes);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (i + kAhead < keys.size()) prefetch_bytes(table + keys[i + kAhead].index * bytes, bytes);
    std::memcpy(to + static_cast<int64_t>(i) * bytes, table + keys[i].index * bytes, bytes);
  }
}

TRAINKIT_VECTORIZED void widen(const uint16_t* from, int64_t count, int64_t* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = from[i];
}

}  // namespace trainkit
