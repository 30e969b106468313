#pragma once
// The messages of ranks or replicas that divide the training state.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace trainkit::detail {

/// The collectives of a rank. `buffer` has one part of equal size per rank. Started work is waited for by `wait`, which
/// throws the error of a lost rank; on GPUs it orders the current stream and does not block.
struct ShardCollectives {
  using Work = c10::intrusive_ptr<c10d::Work>;
  int64_t rank = 0;
  int64_t ranks = 1;
  /// Replaces this rank's part of `buffer` by the sum over all ranks. The other parts are undefined afterwards.
  std::function<Work(const at::Tensor& buffer)> reduce_scatter;
  /// Replaces the other ranks' parts of `buffer` by theirs.
  std::function<Work(const at::Tensor& buffer)> all_gather;
  std::function<void(const Work& work, const std::string& what)> wait;
  /// Sums `values` over all ranks in place.
  std::function<void(const at::Tensor& values)> all_reduce;
  /// Sends this rank's part, in host memory, to rank 0, which gets those of all ranks in one tensor; the others get an
  /// undefined one. Blocks; called from one thread at a time, which need not be that of the other calls.
  std::function<at::Tensor(const at::Tensor& part)> gather_on_host = nullptr;
  /// Returns the tensors of all ranks, which have one size, as rows in host memory. Called like gather_on_host.
  std::function<at::Tensor(const at::Tensor& own)> exchange_on_host = nullptr;
  /// Moves the memory of a buffer, with all its views, to where the calls above need no copy, if there is such a
  /// place; null for a plan and for replicas of one process.
  std::function<void(const at::Tensor& buffer)> share = nullptr;
  /// Returns the device allocator's cached memory; null on the CPU.
  std::function<void()> empty_cache = nullptr;
  /// False for a plan: the weights' values are not needed.
  bool keeps_weights = true;
};

}  // namespace trainkit::detail
