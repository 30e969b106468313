#pragma once
// Divides parameters, their gradients and the optimizer's state among ranks.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "distributed/replicas/gradient_hook.h"
#include "trainkit/distributed/device_replicator.h"

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

/// Place of the parameters in one bucket.
struct ShardedBucket {
  std::vector<size_t> parameters;  // indices
  std::vector<int64_t> begins;     // of each of them, in elements
  int64_t part = 0;                // elements per rank
};

/// Divides `parameters` into buckets for `ranks`. No part cuts a parameter with `is_whole`.
std::vector<ShardedBucket> divide_parameters(const std::vector<at::Tensor>& parameters,
                                             const std::vector<char>& is_whole, int64_t ranks, int64_t first_bytes,
                                             int64_t bucket_bytes);

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

/// Owned by a DeviceReplicator and called by its thread; hooks call it from autograd's thread.
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
  /// The same of the parameter with this index, which is equal on all ranks. index_of_part() is the inverse.
  const at::Tensor& part(size_t index) const { return parts_.at(index); }
  size_t index_of_part(const at::Tensor& part) const;
  bool is_part(const at::Tensor& tensor) const;
  /// The same numbers of `whole`, a tensor of the parameter's shape, for the parameter to which `part` belongs.
  at::Tensor part_of(const at::Tensor& part, const at::Tensor& whole) const;
  /// Returns whether `whole` has the shape of the parameter to which `part` belongs.
  bool fits(const at::Tensor& part, const at::Tensor& whole) const;
  /// Returns uninitialised host memory for a whole tensor of the parameter to which `part` belongs, in its strides.
  at::Tensor make_whole(const at::Tensor& part, at::ScalarType type) const;
  /// Copies `numbers`, a tensor of the shape of `part`, to their place in `whole`, which make_whole() returned.
  void put(const at::Tensor& part, const at::Tensor& numbers, const at::Tensor& whole) const;
  /// Assembles tensors in host memory from the ranks' parts. `parts`: pairs of part() and a tensor of its shape (state
  /// of the optimizer, or a copy). Every rank makes the same call; rank 0 gets the tensors, the others undefined ones.
  /// Blocks. Another thread may train meanwhile. Throws c10::Error if a rank is lost.
  std::vector<at::Tensor> gather(const std::vector<std::pair<at::Tensor, at::Tensor>>& parts) const;

  /// part() of a tensor that may be no parameter of the shards: nullptr then.
  const at::Tensor* find_part(const at::Tensor& parameter) const;
  /// Shape of the parameter to which `part` belongs.
  at::IntArrayRef shape_of(const at::Tensor& part) const { return shapes_[index_of_part(part)].sizes(); }
  /// Returns whether the parameter's memory is row-major, as in a file: each rank's part is then one range of the file.
  bool is_row_major(const at::Tensor& part) const { return shapes_[index_of_part(part)].is_contiguous(); }
  /// Divides the parameter's elements in the order of its memory: rank r has [cuts[r], cuts[r + 1]).
  std::vector<int64_t> cuts(const at::Tensor& part) const;
  /// Returns the tensors of all ranks, see ShardCollectives::exchange_on_host.
  at::Tensor exchange(const at::Tensor& own) const { return collectives_.exchange_on_host(own); }
  int64_t rank() const { return collectives_.rank; }
  int64_t ranks() const { return collectives_.ranks; }

  /// Returns whether every micro-batch is reduced, not only the last one of a step.
  bool reduces_every_run() const { return sharding_ == Sharding::kGradients; }

  /// Precedes forward and backward of a micro-batch. With `reduces` its gradients, and those accumulated before, are
  /// reduced. `on_sent` is called after the last bucket was sent by backward.
  void begin(bool reduces, DeviceReplicator::OnSent on_sent = nullptr);
  /// Follows them. Sends the buckets that backward has not sent: with zeros for missing gradients, or with zeros alone
  /// if this rank does not `contribute`. Waits for all of them.
  void end(bool contribute);
  /// Returns whether a reduction has begun and not ended.
  bool is_reducing() const { return is_active_ && reduces_; }
  /// Index of the first parameter that has received no gradient in this step; nullopt if all have one.
  std::optional<size_t> without_gradient() const;
  /// Releases the gradients, after an update or a failed step. Nothing that this rank has sent may still use them.
  void release_gradients();

  /// The gradients' memory that stays allocated on this rank: one tensor per bucket.
  std::vector<at::Tensor> gradient_memory() const;

  /// Number of the bucket in which a part() is.
  size_t bucket_of(const at::Tensor& part) const { return places_[index_of_part(part)].first; }
  /// Starts to send the weights of a bucket, whose part has been updated, to all ranks, or those of all buckets that
  /// were not started. Every rank starts the buckets in one order.
  void start_gathering(size_t bucket);
  void start_gathering();
  /// Waits for what was started.
  void finish_gathering();
  /// Sends the updated weights to all ranks: what start_gathering() has not sent yet.
  void gather_weights();
  void all_reduce(const at::Tensor& values) const { collectives_.all_reduce(values); }

 private:
  struct Bucket : ShardedBucket {
    at::Tensor weights;
    at::Tensor gradients;              // kOptimizer: always; kGradients: while the bucket is sent
    at::Tensor own;                    // sum of this rank's part
    at::Tensor sent;                   // `gradients`, or a copy in the dtype of the transfer
    ShardCollectives::Work work;       // of the reduce-scatter
    ShardCollectives::Work gathering;  // of the weights
    bool is_gathering = false;
    size_t missing = 0;  // gradients that backward has not computed
    bool is_sent = false;
  };

  int64_t first_number(size_t parameter, int64_t rank) const;
  at::Tensor own_part(const Bucket& bucket, const at::Tensor& buffer) const;
  at::Tensor view(const Bucket& bucket, size_t position, const at::Tensor& buffer) const;
  at::Tensor cut(const Bucket& bucket, size_t position, const at::Tensor& buffer) const;
  std::vector<at::Tensor> release_weights();
  void create_bucket(Bucket& bucket, const std::vector<at::Tensor>& weights);
  void note_gradient(size_t parameter);
  void put_in_bucket(size_t parameter);
  void send_next(bool contribute);
  void fill(const Bucket& bucket);
  void receive_next();
  void receive_all();
  void agree_on_order();

  Sharding sharding_;
  GradientCompression compression_;
  ShardCollectives collectives_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> shapes_;  // of the parameters: meta tensors with their strides
  std::vector<char> is_whole_;
  std::vector<at::Tensor> parts_;            // by parameter
  std::vector<at::Tensor> part_gradients_;   // of the parts, in Bucket::own
  std::vector<at::Tensor> gradient_places_;  // kOptimizer: of the parameters, in Bucket::gradients
  std::vector<Bucket> buckets_;
  std::vector<std::pair<size_t, size_t>> places_;  // by parameter: bucket, position in it
  std::vector<GradientHook> hooks_;

  bool is_active_ = false;
  bool reduces_ = false;
  bool is_summed_ = false;  // own has the sums of an earlier micro-batch of this step
  DeviceReplicator::OnSent on_sent_;
  std::vector<size_t> order_;       // of the buckets, when sent
  bool is_order_known_ = false;     // order_ is rank 0's
  std::vector<size_t> completed_;   // buckets, in the order in which backward completed them
  size_t sent_ = 0, received_ = 0;  // of order_, in the current reduction
  std::vector<char> has_gradient_;  // by parameter, in this step
  std::vector<char> is_computed_;   // by parameter, in this run
};

}  // namespace trainkit::detail
