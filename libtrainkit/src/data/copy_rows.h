#pragma once
/// Copying rows out of a table in memory, for datasets that are one.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "trainkit/data/dataset.h"

namespace trainkit {

/// Asks for the lines of [data, data + bytes) to be brought into the cache; at most 4 KB of them: what follows, the
/// processor's own prefetching finds.
inline void prefetch_bytes(const std::byte* data, int64_t bytes) {
  const int64_t end = bytes < 4096 ? bytes : 4096;
  for (int64_t at = 0; at < end; at += 64) __builtin_prefetch(data + at);
}

/// Copies rows keys[i].index of the table at `table` to positions i of `field` of `out`.
/// With the row that is eight further on prefetched: nearly twice the rate of a plain memcpy loop on rows of 1 KB in
/// random order, which waits for each row's first lines.
void copy_rows(const std::byte* table, std::span<const RowKey> keys, const BatchView& out, size_t field);

/// Copies `count` numbers of 16 bits to 64 bits each: tokens as a model wants its indices.
void widen(const uint16_t* from, int64_t count, int64_t* to);

}  // namespace trainkit
