#pragma once
/// The memory of an array whose sizes a file says.

#include <algorithm>
#include <cstdint>
#include <span>

namespace trainkit::detail {

/// Bytes of an array of these sizes; -1 if a size is negative or 63 bits do not hold it. Sizes of 0 count as 1 for
/// that, as in NumPy's "array is too big": what else overflows is LibTorch's strides.
inline int64_t array_bytes(std::span<const int64_t> sizes, int64_t element_bytes) {
  int64_t bytes = element_bytes;
  bool is_empty = false;
  for (const int64_t size : sizes) {
    if (size < 0 || __builtin_mul_overflow(bytes, std::max<int64_t>(size, 1), &bytes)) return -1;
    is_empty = is_empty || size == 0;
  }
  return is_empty ? 0 : bytes;
}

}  // namespace trainkit::detail
