#pragma once
// What the objects of one call of Trainer::fit share. Internal to Trainer.

#include <cstdint>
#include <memory>

#include "distributed/replicas/replica_strategy.h"
#include "train/run/run_state.h"
#include "trainkit/optim/lr_scheduler.h"
#include "trainkit/train/checkpoint.h"
#include "trainkit/train/train_step.h"
#include "trainkit/train/trainer.h"

namespace trainkit {

/// The options of the steps and of the checkpoints of a run.
TrainStepOptions step_options(const TrainerOptions& options);
CheckpointOptions checkpoint_options(const TrainerOptions& options);

/// The model, its steps and its position. Keeps references to the arguments.
struct FitContext {
  FitContext(detail::ReplicaStrategy& devices, Optimizer& optimizer, const TrainerOptions& options, Prefetcher& loader);
  FitContext(const FitContext&) = delete;
  FitContext& operator=(const FitContext&) = delete;

  detail::ReplicaStrategy& devices;
  Optimizer& optimizer;
  const TrainerOptions& options;
  Prefetcher& loader;
  ProcessGroup* group;                     // nullptr: one process
  std::unique_ptr<LRScheduler> scheduler;  // null: a constant learning rate
  TrainStep step;
  RunProgress progress;
  int64_t first_step = 0;  // progress.step before the first step of this call, after a resume

  bool is_first() const { return !group || group->rank() == 0; }
  int64_t ranks() const { return group ? group->world_size() : 1; }
  /// Position in the data: epochs, with the fraction of the current one.
  double epochs() const;
  /// The parts that have state, as they are now.
  RunParts parts();
  RunShape shape() const;
  /// Creates the device's table of learning rates before the first step, since extending it later waits for the device.
  void reserve_schedule();
};

}  // namespace trainkit
