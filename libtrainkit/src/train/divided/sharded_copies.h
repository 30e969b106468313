#pragma once
// Checkpoints of one process whose copies of the weights divide the training state. Internal to Trainer.

#include <absl/status/status.h>

#include <vector>

#include "distributed/replicas/replica_strategy.h"
#include "distributed/shards/parameter_shards.h"
#include "trainkit/io/safetensors.h"
#include "trainkit/optim/optimizer.h"
#include "trainkit/train/checkpoint.h"
#include "trainkit/train/train_step.h"

namespace trainkit::detail {

/// The training state of a copy of the weights.
struct ShardedCopy {
  Optimizer* optimizer = nullptr;
  const ParameterShards* shards = nullptr;
  NamedTensors averages = {};  // TrainStep::averages()
};

/// Returns the copies of this process with what each keeps; empty without sharding. On a rank of DDP it is one.
std::vector<ShardedCopy> sharded_copies(const ReplicaStrategy& devices, const TrainStep& step);

/// Adds the state of all copies but the first to `contents`, which has that of the first (collect_run).
void add_state_of_copies(const std::vector<ShardedCopy>& copies, CheckpointContents& contents);
/// Replaces the parts of all copies in `contents` by whole tensors in host memory. Another thread may train meanwhile.
absl::Status join_state_of_copies(const std::vector<ShardedCopy>& copies, CheckpointContents& contents);

}  // namespace trainkit::detail
