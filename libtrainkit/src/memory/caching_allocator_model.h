#pragma once
/// A model of LibTorch's CUDA caching allocator.

#include <cstdint>
#include <memory>

#include "trainkit/memory/memory_trace.h"

namespace trainkit {

/// Models CUDACachingAllocator with its default settings:
///   - free memory is kept apart by stream and private pool;
///   - blocks are rounded up to 512 bytes;
///   - blocks up to 1 MiB come from segments of 2 MiB, blocks below 10 MiB from segments of 20 MiB, larger blocks from
///     their own segments in multiples of 2 MiB;
///   - the smallest free block that fits is used, and split if enough remains;
///   - a freed block is merged with free neighbours;
///   - completely free segments are returned to the driver before an out-of-memory error.
/// Source: c10/cuda/CUDACachingAllocator.cpp (PyTorch 2.11).
class CachingAllocatorModel {
 public:
  /// `capacity_bytes`: upper limit of the driver's memory; 0 means unlimited.
  explicit CachingAllocatorModel(int64_t capacity_bytes = 0);
  ~CachingAllocatorModel();

  /// Returns a handle for free(), or -1 if the driver has no memory left.
  int64_t allocate(int64_t bytes, int32_t stream = 0);
  void free(int64_t handle);
  /// Returns unused segments to the driver.
  void empty_cache();

  DeviceMemory now() const;
  DeviceMemory peak() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// Returns the peaks of a whole trace on a device with unlimited memory.
DeviceMemory predict_device_memory(const MemoryTrace& trace);
/// Returns whether the trace runs within `capacity_bytes`. Segments may be returned to the driver and allocated again.
bool fits(const MemoryTrace& trace, int64_t capacity_bytes);

}  // namespace trainkit
