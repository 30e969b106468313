#pragma once
/// How LibTorch's CUDA allocator would hold a trace's blocks.

#include <cstdint>
#include <memory>

#include "trainkit/memory/memory_trace.h"

namespace trainkit {

/// What the device's allocator reports, in bytes: torch.cuda.max_memory_allocated() and max_memory_reserved().
struct DeviceMemory {
  /// Blocks in use, each rounded up to 512 bytes.
  int64_t allocated_bytes = 0;
  /// Segments taken from the driver, used or not.
  int64_t reserved_bytes = 0;
};

/// CUDACachingAllocator with its default settings: free memory kept apart by stream and private pool; blocks rounded to
/// 512 bytes; up to 1 MiB from segments of 2 MiB, below 10 MiB from segments of 20 MiB, others from segments of their
/// own in steps of 2 MiB; the smallest free block that fits, split where enough is left; neighbours joined when freed;
/// segments that are wholly free given back before memory is said to be out. Source: c10/cuda/CUDACachingAllocator.cpp
/// (PyTorch 2.11).
class CachingAllocatorModel {
 public:
  /// `capacity_bytes`: what the driver gives at most; 0 is without end.
  explicit CachingAllocatorModel(int64_t capacity_bytes = 0);
  ~CachingAllocatorModel();

  /// A handle for free(), or -1 if the driver has no more.
  int64_t allocate(int64_t bytes, int32_t stream = 0);
  void free(int64_t handle);
  /// Gives segments that nobody uses back to the driver.
  void empty_cache();

  DeviceMemory now() const;
  DeviceMemory peak() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// The peaks of a whole trace on a device without end.
DeviceMemory replay(const MemoryTrace& trace);
/// Whether the trace runs through with `capacity_bytes`, segments given back and taken anew included.
bool fits(const MemoryTrace& trace, int64_t capacity_bytes);

}  // namespace trainkit
