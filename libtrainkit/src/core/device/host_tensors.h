#pragma once
/// Copies of device tensors on the host, many at a time. LibTorch's own copies use pageable memory and wait for each
/// tensor.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "core/device/streaming_copy.h"

namespace trainkit::detail {

/// Reusable host memory for copies: for asynchronous ones from GPUs page-locked if the system permits it.
/// Tensors made from it keep the memory alive, so release() and the destructor may be called at any time. One thread.
class HostBuffer {
 public:
  /// Returns `bytes` bytes (uint8) on the CPU, uninitialised. Reuses the memory of the last call if it is large enough
  /// and no tensor uses it. Page-locking takes about as long as writing the memory once. Throws std::bad_alloc.
  at::Tensor take(int64_t bytes, bool page_locked = true);
  /// Releases the memory; it is freed when no tensor uses it.
  void release() { memory_.reset(); }

 private:
  at::Tensor memory_;
};

/// Copies of CPU tensors that copy_to_host() leaves to the caller: of the tensors from position `first` on.
struct LaterCopies {
  size_t first = 0;
  std::vector<ByteCopy> copies;
};

/// Copies `tensors` to the CPU, contiguous, in memory of `buffer`, with one synchronisation per device. CPU tensors are
/// returned unchanged, or with `copies_cpu` copied too, by all of LibTorch's threads, with their strides. The copies
/// hold the state of each device's current stream at the time of the call, except those added to `pending`: until the
/// caller has made them, the returned tensors are uninitialised.
std::vector<at::Tensor> copy_to_host(std::span<const at::Tensor> tensors, HostBuffer& buffer, bool copies_cpu = false,
                                     LaterCopies* pending = nullptr);

/// Iterates over tensors in order, each on the CPU and contiguous, for a file that is written tensor by tensor. Device
/// tensors are copied through one page-locked buffer, as many at a time as it holds. One thread.
class HostTensors {
 public:
  /// @param at_a_time size of the buffer in bytes; a larger tensor is copied alone.
  explicit HostTensors(std::vector<at::Tensor> tensors, int64_t at_a_time = int64_t{64} << 20);
  /// Returns the next tensor. It is valid until the next call, unless it was already on the CPU and contiguous.
  at::Tensor next();

 private:
  std::vector<at::Tensor> tensors_, copied_;
  int64_t at_a_time_;
  size_t next_ = 0, begin_ = 0;  // begin_: position of copied_[0] in tensors_
  HostBuffer buffer_;
};

}  // namespace trainkit::detail
