#pragma once
// Copies rows of a table in memory by number.

#include <cstddef>
#include <cstdint>
#include <span>

namespace trainkit::detail {

/// Copies rows `rows[i]` of `row_bytes` bytes of the table at `table` to positions i of `to`. Prefetches the rows
/// ahead: rows in random order are misses of the cache.
void gather_rows(const std::byte* table, int64_t row_bytes, std::span<const int64_t> rows, std::byte* to);

}  // namespace trainkit::detail
