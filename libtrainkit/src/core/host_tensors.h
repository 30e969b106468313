#pragma once
/// Copies of device tensors on the host, many at a time. LibTorch copies one tensor to memory that is not page-locked,
/// and waits, each time.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace trainkit::detail {

/// Memory of the host to which GPUs copy without waiting: page-locked, if a GPU is there and the system permits it.
/// Tensors that are made of it keep it, so release() and the destructor may be called at any time. One thread.
class HostBuffer {
 public:
  /// `bytes` bytes (uint8) on the CPU, not initialised: the memory of the last call if that is large enough and no
  /// tensor uses it any more. Page-locking takes about as long as writing that memory once. Throws std::bad_alloc.
  at::Tensor take(int64_t bytes);
  /// Frees the memory as soon as no tensor uses it.
  void release() { memory_.reset(); }

 private:
  at::Tensor memory_;
};

/// Contiguous copies of `tensors` on the CPU, in memory of `buffer`, with one wait for each device that they are on.
/// Those of the CPU are returned as they are. What they hold is the state at this moment of each device's current
/// stream.
std::vector<at::Tensor> copy_to_host(std::span<const at::Tensor> tensors, HostBuffer& buffer);

/// Tensors in their order, each on the CPU and contiguous, for a file that is written tensor by tensor: those of a
/// device come through one page-locked buffer, as many at a time as it holds. One thread.
class HostTensors {
 public:
  /// @param at_a_time bytes of the buffer; a tensor that is larger comes alone.
  explicit HostTensors(std::vector<at::Tensor> tensors, int64_t at_a_time = int64_t{64} << 20);
  /// The next tensor. It is valid until the next call, but for one that was on the CPU and contiguous.
  at::Tensor next();

 private:
  std::vector<at::Tensor> tensors_, copied_;
  int64_t at_a_time_;
  size_t next_ = 0, begin_ = 0;  // of copied_ in tensors_
  HostBuffer buffer_;
};

}  // namespace trainkit::detail
