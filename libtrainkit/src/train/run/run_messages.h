#pragma once
// Lines that a run prints about its model and its steps. Internal to Trainer.

#include <string>
#include <vector>

#include "distributed/replicas/replica_strategy.h"
#include "train/run/fit_context.h"

namespace trainkit {

/// Warns of a model that is in evaluation mode, and of parameters with gradients that no optimizer has.
std::vector<std::string> warnings_of_model(const FitContext& run);

/// Warns that the learning rate of the flags, `asked`, is ignored, because a resumed run keeps the checkpoint's.
std::string ignored_learning_rate(double kept, double asked);

/// Says that a step ran out of memory and was retried in smaller parts.
std::vector<std::string> split_messages(const FitContext& run);

/// Says why the steps that the options want as CUDA graphs are not from the start; empty if they may be.
std::string without_graphs(const FitContext& run);

/// Warns that an older checkpoint cannot be deleted.
std::string undeleted_checkpoint(const absl::Status& status);
/// Says that the ranks have no common file system to write a checkpoint together.
std::string separate_disks(const std::string& output_dir);

}  // namespace trainkit
