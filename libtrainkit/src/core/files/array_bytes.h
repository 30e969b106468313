#pragma once
/// Size of an array whose shape comes from a file.

#include <algorithm>
#include <cstdint>
#include <span>

namespace trainkit::detail {

/// Returns the bytes of an array of these sizes; -1 if a size is negative or the product overflows 63 bits. A size of 0
/// counts as 1 in the overflow check, as in NumPy's "array is too big": otherwise LibTorch's strides could overflow.
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
