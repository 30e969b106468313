#pragma once
/// Copies of large memory on the host that bypass the caches: they evict nothing that training needs, and do not read
/// the target's memory first.

#include <cstddef>
#include <span>

namespace trainkit::detail {

struct ByteCopy {
  void* target = nullptr;  // a multiple of 64
  const void* source = nullptr;
  size_t bytes = 0;
};

/// Copies on the calling thread to a target that is a multiple of 64, past the caches. They do not overlap.
void streaming_copy(void* target, const void* source, size_t bytes);

/// Makes all copies with all of LibTorch's threads, and waits for them. Targets and sources do not overlap. Copies of
/// less than 8 MB in total stay in the caches.
void copy_in_parallel(std::span<const ByteCopy> copies);

}  // namespace trainkit::detail
