#pragma once
// What the objects of one call of Trainer::fit share. Internal to Trainer.

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "distributed/replicas/replica_strategy.h"
#include "train/run/run_state.h"
#include "train/run/training_source.h"
#include "trainkit/optim/lr_scheduler.h"
#include "trainkit/train/checkpoint.h"
#include "trainkit/train/interval.h"
#include "trainkit/train/train_step.h"
#include "trainkit/train/trainer.h"

namespace trainkit {

/// The options of the steps and of the checkpoints of a run.
TrainStepOptions step_options(const TrainerOptions& options);
CheckpointOptions checkpoint_options(const TrainerOptions& options);

/// What a run trains: one optimizer, whose loss the caller passes with each batch, or several players.
struct Trained {
  Optimizer& optimizer;  // the first one
  std::vector<Player> players = {};
  SharedFunction shared = nullptr;
  /// TrainStepOptions::on_gradients.
  std::function<void(std::string_view player)> on_gradients = nullptr;
};

/// The model, its steps and its position. Keeps references to the arguments.
struct FitContext {
  /// @param source nullptr if the caller passes each batch
  /// @param others FitOptions::state
  FitContext(detail::ReplicaStrategy& devices, const Trained& trained, const TrainerOptions& options,
             BatchSource* source, const std::vector<NamedState>& others);
  FitContext(const FitContext&) = delete;
  FitContext& operator=(const FitContext&) = delete;

  detail::ReplicaStrategy& devices;
  Optimizer& optimizer;  // of the first player
  const TrainerOptions& options;
  ProcessGroup* group;  // nullptr: one process
  TrainingSource source;
  const std::vector<NamedState>& others;
  std::vector<std::unique_ptr<LRScheduler>> schedulers;  // of the players; null: a constant learning rate
  TrainStep step;
  std::vector<RunParts::Player> players;  // at least one
  RunProgress progress;
  int64_t steps_taken = 0;  // of this call, those that were rolled back included
  int64_t first_step = 0;   // progress.step before the first step of this call, after a resume

  bool is_first() const { return !group || group->rank() == 0; }
  int64_t ranks() const { return group ? group->world_size() : 1; }
  /// Position in the data: epochs, with the fraction of the current one.
  double epochs() const { return source.epochs(); }
  bool has_players() const { return !players.front().name.empty(); }
  /// Whether what happens at `interval` follows the step that has ended. Not of times.
  bool is_due(const Interval& interval) const;
  /// Of the first player.
  LRScheduler* scheduler() const { return players.front().scheduler; }
  /// The parts that have state, as they are now.
  RunParts parts();
  RunShape shape() const;
  /// Creates the device's table of learning rates before the first step, since extending it later waits for the device.
  void reserve_schedule();
};

}  // namespace trainkit
