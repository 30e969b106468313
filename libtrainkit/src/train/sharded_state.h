#pragma once
// Optimizers and checkpoints of ranks that divide the training state. Internal to TrainStep and Trainer.

#include <map>
#include <string>

#include "distributed/parameter_shards.h"
#include "trainkit/core/state_dict.h"
#include "trainkit/io/safetensors.h"
#include "trainkit/optim/optimizer.h"

namespace trainkit::detail {

/// Gives an optimizer without parameters those of the model. If the replicator divides them (Sharding), replaces the
/// optimizer's parameters by the parts that this rank updates. Every rank calls it.
void add_parameters(DeviceReplicator& devices, Optimizer& optimizer);

/// Checkpoints have whole tensors. Replaces this rank's parts in `state` (Optimizer::state_dict()) by whole tensors in
/// host memory. Every rank calls it; only rank 0's result is complete. Throws absl::BadStatusOrAccess if a rank is
/// lost.
StateDict gather_state(StateDict state, const Optimizer& optimizer, const ParameterShards& shards);
/// The same for TrainStep::averages().
NamedTensors gather_averages(const NamedTensors& averages, const Optimizer& optimizer, const ParameterShards& shards);

/// Loads the averages from whole tensors by name.
void load_averages(const NamedTensors& averages, const std::map<std::string, at::Tensor>& whole,
                   const Optimizer& optimizer, const ParameterShards& shards);

/// Replaces the whole tensors in `state` by this rank's parts. Tensors that fit no parameter stay, so that loading them
/// reports what is wrong.
StateDict parts_of_state(StateDict state, const Optimizer& optimizer, const ParameterShards& shards);

}  // namespace trainkit::detail
