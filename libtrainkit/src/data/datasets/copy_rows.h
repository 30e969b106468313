#pragma once
/// Copies rows from a table in memory. Used by datasets that are such a table.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "trainkit/data/dataset.h"

namespace trainkit {

/// Prefetches the cache lines of [data, data + bytes), at most 4 KB. Beyond that, the hardware prefetcher takes over.
inline void prefetch_bytes(const std::byte* data, int64_t bytes) {
  const int64_t end = bytes < 4096 ? bytes : 4096;
  for (int64_t at = 0; at < end; at += 64) __builtin_prefetch(data + at);
}

/// Copies rows keys[i].index of the table at `table` to positions i of `field` of `out`.
/// Prefetches the row eight positions ahead. On rows of 1 KB in random order this is nearly twice as fast as a plain
/// memcpy loop, which waits for the first lines of each row.
void copy_rows(const std::byte* table, std::span<const RowKey> keys, const BatchView& out, size_t field);

/// Widens `count` integers from 16 to 64 bits, for example token ids to the index dtype of a model.
void widen(const uint16_t* from, int64_t count, int64_t* to);

}  // namespace trainkit
