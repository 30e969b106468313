#pragma once
// Reduces the gradients of a divided training state during backward: each rank gets the sum of its part.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "distributed/shards/gradient_hook.h"
#include "distributed/shards/shard_collectives.h"
#include "distributed/shards/shard_layout.h"
#include "trainkit/distributed/replicator_options.h"

namespace trainkit::detail {

/// See Note [Shards of parameters]. Called by the thread of its DeviceReplicator; hooks call it from autograd's thread.
class ShardReduction {
 public:
  /// Allocates the buckets' gradients and watches `parameters`. `parts` get the sums as gradients. All arguments
  /// outlive this object; parameters and parts are in the order of the layout.
  ShardReduction(const ShardLayout& layout, const std::vector<at::Tensor>& parameters,
                 const std::vector<at::Tensor>& parts, const DeviceReplicatorOptions& options,
                 const ShardCollectives& collectives);
  ShardReduction(const ShardReduction&) = delete;
  ShardReduction& operator=(const ShardReduction&) = delete;

  /// Returns whether every micro-batch is reduced, not only the last one of a step.
  bool reduces_every_run() const { return sharding_ == Sharding::kGradients; }

  /// Precedes forward and backward of a micro-batch. With `reduces` its gradients, and those accumulated before, are
  /// reduced. `on_sent` is called after the last bucket was sent by backward.
  void begin(bool reduces, std::function<void()> on_sent = nullptr);
  /// Follows them. Sends the buckets that backward has not sent: with zeros for missing gradients, or with zeros alone
  /// if this rank does not `contribute`. Waits for all of them.
  void end(bool contribute);
  /// Returns whether a reduction has begun and not ended.
  bool is_reducing() const { return is_active_ && reduces_; }
  /// Index of the first parameter that has received no gradient in this step; nullopt if all have one.
  std::optional<size_t> without_gradient() const;
  /// Releases the gradients, after an update or a failed step. Nothing that this rank has sent may still use them.
  void release();
  /// The gradients' memory that stays allocated on this rank: one tensor per bucket.
  std::vector<at::Tensor> memory() const;

 private:
  struct Bucket {
    at::Tensor gradients;         // kOptimizer: always; kGradients: while the bucket is sent
    at::Tensor own;               // sum of this rank's part
    at::Tensor sent;              // `gradients`, or a copy in the dtype of the transfer
    ShardCollectives::Work work;  // of the reduce-scatter
    size_t missing = 0;           // gradients that backward has not computed
    bool is_sent = false;
  };
  struct Parameter {
    at::Tensor part_gradient;   // of the part, in Bucket::own
    at::Tensor place;           // kOptimizer: of the gradient, in Bucket::gradients
    bool has_gradient = false;  // in this step
    bool is_computed = false;   // in this run
  };

  at::TensorOptions options_of(size_t bucket) const;
  void allocate(size_t bucket);
  void note_gradient(size_t parameter);
  void put_in_bucket(size_t parameter);
  void send_next(bool contribute);
  void fill(size_t bucket);
  void receive_next();
  void receive_all();
  void agree_on_order();

  const ShardLayout& layout_;
  const std::vector<at::Tensor>& parameters_;
  const std::vector<at::Tensor>& parts_;
  Sharding sharding_;
  GradientCompression compression_;
  const ShardCollectives& collectives_;
  std::vector<Bucket> buckets_;
  std::vector<Parameter> states_;  // by parameter
  std::vector<GradientHook> hooks_;

  bool is_active_ = false;
  bool reduces_ = false;
  bool is_summed_ = false;  // own has the sums of an earlier micro-batch of this step
  std::function<void()> on_sent_;
  /// The order in which the buckets are sent, and how far the current reduction is.
  struct Order {
    std::vector<size_t> buckets;
    bool is_known = false;          // the buckets are in rank 0's order
    std::vector<size_t> completed;  // in the order in which backward completed them
    size_t sent = 0, received = 0;  // of `buckets`
  };
  Order order_;
};

}  // namespace trainkit::detail
