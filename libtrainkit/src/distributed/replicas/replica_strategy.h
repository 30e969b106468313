#pragma once
// What only TrainStep and other parts of the library call of a DeviceReplicator.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/base/time_sum.h"
#include "distributed/replicas/replica_phases.h"
#include "trainkit/distributed/device_replicator.h"

namespace trainkit::detail {

class GraphRanks;
class ParameterShards;

/// Base of all replicators. Its defaults are those of one model without communication, whose steps can be captured.
class ReplicaStrategy : public DeviceReplicator {
 public:
  int64_t weight_copies() const override { return 1; }
  ProcessGroup* process_group() const override { return nullptr; }
  Sharding sharding() const override { return Sharding::kNone; }
  void synchronize_buffers() override {}
  double reduce_seconds() const override { return reduce_time_.seconds(); }

  /// Begins a step by seeding the replicas' generators, as the first run() of a step does otherwise. TrainStep calls it
  /// to save the state of all generators at the start of a step.
  virtual void begin_step() = 0;
  /// Called once this rank has sent its last bucket, while the reduction is still in progress.
  using OnSent = std::function<void()>;
  /// As DeviceReplicator::run. `on_sent` is called once during backward, from the thread that runs backward. It is not
  /// called without other ranks, on a rank without a loss, or with find_unused_parameters.
  virtual void run(const Body& body, bool reduce_gradients = true, const OnSent& on_sent = nullptr) = 0;
  /// Contributes zeros to the reduction of a step that this rank cannot finish. Does nothing without other ranks.
  virtual void skip_reduction() {}
  /// Discards a step that failed on some rank. Every rank calls it before the next run().
  virtual void abandon_step() {}

  /// Changes when a step or run finds that other parameters of the first replica are trained (requires_grad).
  virtual int64_t trained_version() const = 0;
  /// Whether each run with reduction needs a gradient of every trained parameter: on ranks without
  /// find_unused_parameters.
  virtual bool needs_all_gradients() const { return false; }

  /// Phases of a step, of the players of a TrainStep.
  ReplicaPhases& phases() { return phases_; }

  // ---- Sharding.

  /// Divides the trained parameters at the first call, before the first run(). Every rank calls it. `is_whole` selects
  /// parameters of the first replica that no rank may get only a part of; empty: none.
  virtual void divide_parameters(const std::function<bool(const at::Tensor&)>& /*is_whole*/) {}
  /// Returns what divide_parameters() made for a copy of the weights in this process, or nullptr.
  virtual ParameterShards* shards(int64_t /*copy*/ = 0) const { return nullptr; }
  /// On every rank: sends the updated weights to all copies.
  virtual void gather_weights() {}
  /// On every rank: sums values[i], of the shards of copy i, over all shards in place.
  virtual void sum_over_shards(const std::vector<at::Tensor>& /*values*/) {}

  // ---- CUDA graphs.

  /// Returns why a step cannot be a graph; empty if it can.
  virtual std::string graph_obstacle() const { return ""; }
  /// Lets backward end on the devices' current streams, which are those of the steps from now on.
  virtual void use_current_streams() {}
  /// After a capture failed: waits for threads that may still work on it, and clears their errors.
  virtual void recover() {}
  /// Ranks whose steps can be graphs; null without other ranks.
  virtual GraphRanks* graph_ranks() { return nullptr; }

 protected:
  TimeSum reduce_time_;
  ReplicaPhases phases_;
};

/// The only way from a replicator to the functions above.
inline ReplicaStrategy& strategy_of(DeviceReplicator& devices) { return static_cast<ReplicaStrategy&>(devices); }
inline const ReplicaStrategy& strategy_of(const DeviceReplicator& devices) {
  return static_cast<const ReplicaStrategy&>(devices);
}

}  // namespace trainkit::detail
