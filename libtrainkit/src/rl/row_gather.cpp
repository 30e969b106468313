#include "rl/row_gather.h"

#include <algorithm>
#include <cstring>

namespace trainkit::detail {
namespace {

constexpr size_t kAhead = 16;
constexpr int64_t kLine = 64, kPrefetched = 1024;  // the processor prefetches the rest of a long row

/// The size is known at compile time, so memcpy becomes a few moves.
template <int64_t kBytes>
void gather_small(const std::byte* table, std::span<const int64_t> rows, std::byte* to) {
  for (size_t i = 0; i < std::min(kAhead, rows.size()); ++i) __builtin_prefetch(table + rows[i] * kBytes);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i + kAhead < rows.size()) __builtin_prefetch(table + rows[i + kAhead] * kBytes);
    std::memcpy(to + static_cast<int64_t>(i) * kBytes, table + rows[i] * kBytes, kBytes);
  }
}

void prefetch_row(const std::byte* row, int64_t bytes) {
  for (int64_t at = 0; at < std::min(bytes, kPrefetched); at += kLine) __builtin_prefetch(row + at);
}

}  // namespace

void gather_rows(const std::byte* table, int64_t row_bytes, std::span<const int64_t> rows, std::byte* to) {
  switch (row_bytes) {
    case 1:
      return gather_small<1>(table, rows, to);
    case 2:
      return gather_small<2>(table, rows, to);
    case 4:
      return gather_small<4>(table, rows, to);
    case 8:
      return gather_small<8>(table, rows, to);
    case 12:
      return gather_small<12>(table, rows, to);
    case 16:
      return gather_small<16>(table, rows, to);
    case 32:
      return gather_small<32>(table, rows, to);
    default:
      break;
  }
  constexpr size_t kLongAhead = 4;
  for (size_t i = 0; i < std::min(kLongAhead, rows.size()); ++i) prefetch_row(table + rows[i] * row_bytes, row_bytes);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i + kLongAhead < rows.size()) prefetch_row(table + rows[i + kLongAhead] * row_bytes, row_bytes);
    std::memcpy(to + static_cast<int64_t>(i) * row_bytes, table + rows[i] * row_bytes, static_cast<size_t>(row_bytes));
  }
}

}  // namespace trainkit::detail
