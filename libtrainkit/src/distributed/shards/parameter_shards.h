#pragma once
// Divides parameters, their gradients and the optimizer's state among ranks.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "distributed/shards/shard_collectives.h"
#include "distributed/shards/shard_layout.h"
#include "distributed/shards/shard_reduction.h"
#include "distributed/shards/weight_gathering.h"
#include "trainkit/distributed/replicator_options.h"

namespace trainkit::detail {

// Note [Shards of parameters]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~
// The parameters lie one after the other in buckets of about DeviceReplicatorOptions::bucket_bytes, in reverse order:
// backward computes the gradients of the last layers first. A bucket has one part per rank, all of one size, and each
// rank updates its part: numbers of a few parameters, the first and the last perhaps cut. A step is then
//   backward        as soon as a bucket has all its gradients: reduce-scatter; this rank gets the sum of its part
//   update          an ordinary optimizer, whose parameters are the 1-D parts (part()) with the sums as gradients
//   gather_weights  all-gather of the weights, in place; that of a bucket starts as soon as its part is updated
// which sends as many bytes as an all-reduce of the gradients. The optimizer's state exists once over all ranks.
// - Sharding::kOptimizer keeps the buckets' gradients whole, so that micro-batches accumulate in them.
// - Sharding::kGradients keeps this rank's part only. Each micro-batch is reduced and added to it. A bucket's memory
//   exists from its last gradient to the end of its reduce-scatter, of two buckets at most.
// Muon needs whole matrices: those lie in buckets of their own, in which no part cuts a matrix.
// Every parameter starts at a multiple of 64 bytes, like LibTorch's own tensors, so that kernels are as fast and
// compute the same bits. All ranks send the buckets in one order: in the first reduction that of the buckets, later the
// order in which rank 0 completed them.
//
// Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (stages
// 1 and 2); the layout of buckets is that of Megatron-LM's DistributedOptimizer.

/// What a DeviceReplicator divides: the parameters, and their parts for the optimizer of this rank. The layout says
/// which numbers these are, the reduction sums their gradients, the gathering sends their weights.
class ParameterShards {
 public:
  /// Moves the parameters' memory into buckets. `is_whole` as in DeviceReplicator::divide_parameters.
  ParameterShards(std::vector<at::Tensor> parameters, const std::function<bool(const at::Tensor&)>& is_whole,
                  const DeviceReplicatorOptions& options, ShardCollectives collectives);
  ParameterShards(const ParameterShards&) = delete;
  ParameterShards& operator=(const ParameterShards&) = delete;

  /// What this rank updates of `parameter`: a leaf that shares its memory. 1-D, or with is_whole of the parameter's
  /// dimensions; with 0 elements if this rank updates nothing of it. After a reduction its gradient is the sum.
  const at::Tensor& part(const at::Tensor& parameter) const;
  /// The same of a tensor that may be no parameter of the shards: nullptr then.
  const at::Tensor* find_part(const at::Tensor& parameter) const;
  /// The same of the parameter with this index, which is equal on all ranks. index_of_part() is the inverse.
  const at::Tensor& part(size_t index) const { return parts_.at(index); }
  size_t index_of_part(const at::Tensor& part) const;
  bool is_part(const at::Tensor& tensor) const;

  /// Begins a micro-batch: ShardReduction::begin, and forgets weights that an update has not finished sending.
  void begin(bool reduces, std::function<void()> on_sent = nullptr);
  /// By the indices of the parameters.
  const ShardLayout& layout() const { return layout_; }
  ShardReduction& reduction() { return reduction_; }
  const ShardReduction& reduction() const { return reduction_; }
  WeightGathering& gathering() { return gathering_; }

  /// Sums `values` over all ranks in place.
  void all_reduce(const at::Tensor& values) const { collectives_.all_reduce(values); }
  /// Returns the tensors of all ranks, see ShardCollectives::exchange_on_host.
  at::Tensor exchange(const at::Tensor& own) const { return collectives_.exchange_on_host(own); }
  /// Assembles tensors in host memory from the ranks' parts. `parts`: pairs of part() and a tensor of its shape (state
  /// of the optimizer, or a copy). Every rank makes the same call; rank 0 gets the tensors, the others undefined ones.
  /// Blocks. Another thread may train meanwhile. Throws c10::Error if a rank is lost.
  std::vector<at::Tensor> gather(const std::vector<std::pair<at::Tensor, at::Tensor>>& parts) const;

 private:
  static ShardLayout make_layout(const std::vector<at::Tensor>& parameters,
                                 const std::function<bool(const at::Tensor&)>& is_whole,
                                 const DeviceReplicatorOptions& options, const ShardCollectives& collectives);
  std::vector<at::Tensor> move_weights();
  std::vector<at::Tensor> release_weights();

  ShardCollectives collectives_;
  std::vector<at::Tensor> parameters_;
  ShardLayout layout_;
  WeightGathering gathering_;
  std::vector<at::Tensor> parts_;  // by parameter
  ShardReduction reduction_;
};

}  // namespace trainkit::detail
