#pragma once
// Optimizers and checkpoints of ranks that divide the training state. Internal to TrainStep and Trainer.

#include <map>
#include <string>

#include "distributed/shards/parameter_shards.h"
#include "train/divided/save_together.h"
#include "trainkit/core/state_dict.h"
#include "trainkit/io/safetensors.h"
#include "trainkit/optim/optimizer.h"
#include "trainkit/train/checkpoint.h"

namespace trainkit::detail {

/// The optimizer's parameters by name.
using PartsByName = std::map<std::string, at::Tensor>;
PartsByName parts_by_name(const Optimizer& optimizer);

/// Reduces `contents`, all of collect_run(), to the tensors that this rank writes when all ranks save together: its
/// parts of the divided ones and, on rank 0, the others. Copies no tensor. `averages` are TrainStep::averages(), empty
/// without. Returns the divided tensors.
DividedCheckpoint keep_own_parts(CheckpointContents& contents, const NamedTensors& averages,
                                 const torch::nn::Module& model, const Optimizer& optimizer,
                                 const ParameterShards& shards);

/// Replaces the parts by whole tensors in rank 0's host memory: those of all divided tensors, or of the ones without
/// cuts. Every rank calls it. Tensors of the other ranks are undefined afterwards. Blocks; another thread may train
/// meanwhile. Error of exit code 8: a rank is lost.
absl::Status gather_parts(CheckpointContents& contents, const DividedCheckpoint& divided, bool all,
                          const ParameterShards& shards);

/// Loads the averages from whole tensors by name.
void load_averages(const NamedTensors& averages, const std::map<std::string, at::Tensor>& whole,
                   const Optimizer& optimizer, const ParameterShards& shards);

/// Replaces the whole tensors in `state` by this rank's parts. Tensors that fit no parameter stay, so that loading them
/// reports what is wrong.
StateDict parts_of_state(StateDict state, const Optimizer& optimizer, const ParameterShards& shards);

}  // namespace trainkit::detail
