#pragma once
// Reduces the gradients of a rank together with the other ranks.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>
#include <vector>

#include "distributed/replicas/replica_strategy.h"
#include "trainkit/distributed/process_group.h"

namespace trainkit::detail {

/// Sums gradients over the ranks during backward. Every rank makes the same calls.
class GradientSums {
 public:
  using Backward = std::function<void(const at::Tensor& loss)>;
  struct Run {
    bool reduces;          // the gradients of this run and of those before
    bool is_last;          // of a step
    bool has_collectives;  // the model's backward meets that of the other ranks (SyncBatchNorm)
    ReplicaStrategy::OnSent on_sent;
    Backward backward;
  };
  virtual ~GradientSums() = default;

  /// Returns whether every micro-batch is reduced, not only the last one of a step.
  virtual bool reduces_every_run() const { return false; }
  /// Both precede a run that reduces; the ranks exchange other tensors between them.
  virtual void begin() = 0;
  virtual void arrange() {}
  /// Runs forward and backward.
  virtual void run(const DeviceReplicator::Body& body, const Run& run) = 0;
  /// Sends what backward has not sent and the other ranks wait for. With `contribute` it sends the existing gradients,
  /// which then become the sums; otherwise zeros, for a failed step. `records_order`: the other ranks run backward, and
  /// may arrange their buckets by its order.
  virtual void complete(bool contribute, bool records_order) = 0;
  /// Returns whether the other ranks wait for nothing.
  virtual bool is_complete() const { return false; }
  /// Waits for all that was sent. Throws the Error of a lost rank if it failed.
  virtual void throw_if_broken() {}
  /// Discards a step; `reduced`: a reduction has begun in it.
  virtual void abandon(bool reduced) = 0;
  /// Every rank arranges its buckets anew.
  virtual void rearrange() {}
  /// Releases what was sent.
  virtual void forget_sent() {}
};

/// Takes part in the reductions of all ranks, whatever happens on this one. Called by the thread of Distributed.
class RankReduction {
 public:
  explicit RankReduction(ProcessGroup& group) : group_(group) {}

  /// Binds the model's layers that use collectives to `group`.
  void bind(torch::nn::Module& model, ReplicaGroup& group);
  /// Sets what reduces the phase; null: nothing is reduced. Releases the sums before, with their memory.
  void use(std::unique_ptr<GradientSums> sums) { of_phases_[phase_] = {.sums = std::move(sums), .is_set = true}; }
  /// Goes to another phase. Returns whether use() was called for it.
  bool begin_phase(size_t phase);
  /// Releases the sums of all phases; none is set then.
  void release() {
    for (OfPhase& one : of_phases_) one = {};
  }

  void begin_step() { is_used_ = false; }
  /// Runs forward and backward; `is_last` run of a step reduces. If the body throws, the other ranks get zeros.
  void run(const DeviceReplicator::Body& body, bool is_last, const ReplicaStrategy::OnSent& on_sent,
           const GradientSums::Backward& backward);
  /// See GraphRanks.
  void reduce();
  /// See ReplicaStrategy::skip_reduction and abandon_step.
  void skip();
  void abandon();
  void rearrange();
  void forget_sent();
  void synchronize_buffers();

 private:
  void begin(bool sends_buffers);
  void complete(bool contribute, bool records_order = true);
  void release_other_ranks();

  ProcessGroup& group_;
  std::vector<at::Tensor> buffers_;
  bool has_collectives_ = false;  // the model contains collectives (SyncBatchNorm)
  struct OfPhase {
    std::unique_ptr<GradientSums> sums = nullptr;
    bool is_set = false;
  };
  GradientSums* sums() const { return of_phases_[phase_].sums.get(); }

  std::vector<OfPhase> of_phases_ = std::vector<OfPhase>(1);
  size_t phase_ = 0;
  bool is_used_ = false;    // in this step
  bool has_begun_ = false;  // and not ended, in this step
};

}  // namespace trainkit::detail
