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

/// Says how large the files of the source are, and what the disk has; then how long the first save took.
std::string size_of_files(int64_t bytes, const std::string& output_dir);
std::string time_of_save(int64_t step, double seconds);

}  // namespace trainkit
