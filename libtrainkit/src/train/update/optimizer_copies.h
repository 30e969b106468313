#pragma once
// The optimizers and moving averages of all copies of the weights.

#include <cstdint>
#include <memory>
#include <vector>

#include "distributed/replicas/replica_strategy.h"
#include "train/update/weight_average.h"
#include "trainkit/io/safetensors.h"
#include "trainkit/optim/optimizer.h"

namespace trainkit::detail {

class MemoryRecovery;
class ParameterShards;

/// Copy 0 has the caller's optimizer; each further copy of the weights in this process has a mirror with the same
/// settings. Used by the thread of the step.
class OptimizerCopies {
 public:
  /// Creates the mirrors and, with `ema_decay` > 0, the averages. The mirrors start with the state of `optimizer`,
  /// which an earlier step may have used; with sharding they update the parts that it does not, and it owns them.
  /// Throws an Error of exit code 2 for a parameter that is not the model's.
  OptimizerCopies(ReplicaStrategy& devices, Optimizer& optimizer, double ema_decay, MemoryRecovery& memory);

  /// The caller's optimizer, then the mirrors.
  const std::vector<Optimizer*>& all() const { return optimizers_; }
  Optimizer& first() const { return *optimizers_.front(); }

  /// Follows, before a step, the groups and trained parameters that have changed since the last one. Returns whether
  /// any have.
  bool follow();
  /// Copies weights, averages and optimizer state of copy 0 to all others; with sharding only the weights. Every rank
  /// calls it.
  void synchronize();

  /// Averages of a copy by the names of the model's parameters: the live tensors. With sharding: parts. Empty without
  /// ema_decay.
  NamedTensors averages(int64_t copy) const;
  /// Exchanges all weights with their averages, in place. Does not synchronise. With sharding every rank calls it.
  void swap_averages();
  /// Moves the averages after an update; see WeightAverage::update for `found_inf`, by copy.
  void update_averages(const std::vector<at::Tensor>& found_inf) const;

 private:
  void create_mirrors();
  void create_shard_mirrors();
  void add_groups();
  void copy_state();

  ReplicaStrategy& devices_;
  MemoryRecovery& memory_;
  ParameterShards* shards_;  // of the first copy of the weights; null without sharding
  std::vector<std::unique_ptr<Optimizer>> mirrors_;
  std::vector<Optimizer*> optimizers_;
  std::vector<WeightAverage> averages_;  // one for each of them; empty without ema_decay
  size_t groups_ = 0;                    // of the optimizer, that mirrors and averages have
  int64_t trained_version_ = 0;          // of devices_
};

}  // namespace trainkit::detail
