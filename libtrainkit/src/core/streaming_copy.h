#pragma once
/// Copies of large memory on the host with all of LibTorch's threads.

#include <cstddef>
#include <span>

namespace trainkit::detail {

struct ByteCopy {
  void* target = nullptr;  // a multiple of 64
  const void* source = nullptr;
  size_t bytes = 0;
};

/// Makes all copies, and waits for them. Targets and sources do not overlap. Large copies bypass the caches: they evict
/// nothing that training needs, and do not read the target's memory first.
void copy_in_parallel(std::span<const ByteCopy> copies);

}  // namespace trainkit::detail
