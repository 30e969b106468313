#pragma once
// Writers of a training state that is divided. Internal to Trainer.

#include <functional>
#include <memory>

#include "distributed/replicas/replica_strategy.h"
#include "train/checkpoint/checkpoint_writer.h"
#include "trainkit/train/train_step.h"

namespace trainkit::detail {

/// Returns the writer of a run: of the whole state of one optimizer; of the joined parts of this process's copies; or
/// of this rank's parts, or its files, which the ranks write together.
/// @param store of the checkpoints, on the first rank; null on the others. It and the other arguments outlive the
/// writer.
/// @param on_alone called, perhaps by another thread, when the first rank writes alone since the ranks have no common
/// file system
std::unique_ptr<CheckpointWriter> make_writer(const ReplicaStrategy& devices, const Optimizer& optimizer,
                                              const TrainStep& step, CheckpointStore* store,
                                              const std::function<void()>& on_alone);

}  // namespace trainkit::detail
