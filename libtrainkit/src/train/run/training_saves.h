#pragma once
// The checkpoints of a run. Internal to Trainer.

#include <absl/status/status.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "train/checkpoint/background_saves.h"
#include "train/run/fit_context.h"
#include "train/run/training_log.h"

namespace trainkit {

/// Saves the run in a background thread of the first rank (with sharding of every rank); training continues as soon as
/// the weights are copied. See Note [Background saves] in background_saves.cpp. Every rank makes the same calls. Keeps
/// references to the arguments.
class TrainingSaves {
 public:
  TrainingSaves(FitContext& run, TrainingLog& log) : run_(run), log_(log), saves_(run.group) {}

  /// Returns whether the options ask for checkpoints.
  bool is_on() const { return run_.options.save_every && !run_.options.output_dir.empty(); }
  /// Returns whether the time between two saves has passed on the first rank, and begins the next interval.
  bool take_time();
  /// Opens the checkpoint folder, on the first rank, if the run saves or resumes.
  absl::Status open();
  /// Step of the last checkpoint of this run, or that it resumed from; -1 without.
  int64_t last_step() const { return last_step_; }
  void set_last_step(int64_t step) { last_step_ = step; }

  /// Starts to save the run after the step that has ended, which has succeeded on all ranks (TrainStep::confirm).
  absl::Status save();
  /// Waits until the running save, if any, has copied the optimizer's state. Call it before an update.
  void wait_for_copy();
  /// Waits for the running save, if any. All ranks continue, or all end. Call it before reading or naming the last
  /// checkpoint.
  absl::Status finish();
  /// Ends the run soon after a failed save. Several ranks learn of it together, in finish().
  absl::Status check();
  double background_seconds() const { return saves_.background_seconds(); }

 private:
  void announce_files(int64_t bytes);
  void warn_once();

  FitContext& run_;
  TrainingLog& log_;
  std::atomic<bool> wrote_alone_{false};  // set by the thread of saves_
  std::optional<CheckpointStore> store_;  // on the first rank
  std::unique_ptr<CheckpointWriter> writer_;
  BackgroundSaves saves_;
  int64_t last_step_ = -1;
  TrainingLog::Clock::time_point last_begin_ = TrainingLog::Clock::now();
  bool warned_of_old_checkpoints_ = false;
  bool warned_of_separate_disks_ = false;
  bool has_announced_files_ = false, has_timed_files_ = false;
  double seconds_before_ = 0;  // background_seconds() before the last save
};

}  // namespace trainkit
