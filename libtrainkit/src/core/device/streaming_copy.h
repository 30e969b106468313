#pragma once
/// Copies of large memory on the host that bypass the caches: they evict nothing that training needs, and do not read
/// the target's memory first.

#include <cstddef>
#include <cstdint>
#include <span>

namespace trainkit::detail {

constexpr int64_t kStreamedLine = 64;  // bytes of a cache line

/// Copies whole cache lines with the widest streaming stores of the processor. Other threads see them only after
/// end_streaming(). `to` is a multiple of kStreamedLine. See Note [Streaming stores].
using StreamLines = void (*)(std::byte* to, const std::byte* from, int64_t lines);
extern const StreamLines stream_lines;
void end_streaming();

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
