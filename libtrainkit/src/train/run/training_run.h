#pragma once
// One call of Trainer::fit. Internal to Trainer.

#include <absl/status/statusor.h>
#include <c10/util/FunctionRef.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "train/checkpoint/background_saves.h"
#include "train/evaluation/validation.h"
#include "train/planning/real_memory.h"
#include "train/run/run_state.h"
#include "train/run/skipped_steps.h"
#include "train/run/step_profile.h"
#include "train/run/step_records.h"
#include "train/run/stop_policy.h"
#include "trainkit/train/trainer.h"

namespace trainkit {

/// What the calls of Trainer::fit so far leave for the next one.
struct EarlierFits {
  int64_t count = 0;
  int64_t steps = 0;
  RowTrace rows = {};
};

/// The state of one call of fit, and the work at each interval. Keeps references to the arguments.
class TrainingRun {
  using Clock = std::chrono::steady_clock;

 public:
  TrainingRun(DeviceReplicator& devices, Optimizer& optimizer, const TrainerOptions& options, Prefetcher& loader,
              LossFunction loss, const FitOptions& fit, EarlierFits& earlier);

  /// Trains until a limit is reached. Call it once.
  absl::StatusOr<TrainerResult> operator()();

 private:
  /// Wraps a loss function: its exceptions become errors that name the step.
  LossFunction with_step(LossFunction loss, const char* who) const;

  absl::StatusOr<std::optional<Batch>> next_batch();

  /// Calls a part of the step. If memory runs out there, not even one row at a time fits.
  void take_step(c10::function_ref<void()> call);
  [[noreturn]] void throw_step_error(const absl::Status& status);

  static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
  bool is_first() const { return !group_ || group_->rank() == 0; }
  int64_t ranks() const { return group_ ? group_->world_size() : 1; }
  bool is_saving() const { return options_.save_every > 0 && !options_.output_dir.empty(); }

  /// Makes loaders that were created without a device copy their batches to it from now on.
  void use_devices();

  /// Resumes if requested, opens the checkpoint folder and the logger, and checks whether any work is left. Changes no
  /// file before the checkpoint was read and the ranks agree.
  absl::Status prepare();

  /// Continues from the checkpoint that was read, after the logger was opened. Warns of `differs`.
  absl::Status continue_run(const std::string& differs, double asked_lr);

  /// Tells the logger the range of the run's steps.
  void begin_log();

  double base_lr() const { return scheduler_ ? scheduler_->base_lr() : optimizer_.lr(); }
  void set_base_lr(double lr) {
    optimizer_.set_lr(lr);
    if (scheduler_) scheduler_->set_base_lr(lr);
  }

  /// Warns if the learning rate of the flags is ignored, because a resumed run keeps the checkpoint's.
  void log_learning_rate(double asked);

  /// Warns of a model that is in evaluation mode, and of parameters with gradients that the optimizer does not have.
  void warn_of_model();
  void warn_of_modes();

  /// Creates the device's table of learning rates before the first step, since extending it later waits for the device.
  void reserve_schedule();

  /// Compares settings and data of the ranks before the first collective. If they differed, rows and gradients would
  /// not match, or one rank would finish before the others.
  absl::Status compare_ranks();

  absl::Status complete_step();

  /// Steps after which a run without a captured CUDA graph is reported.
  static constexpr int64_t kLateCapture = 20;

  /// Returns true before the first batch of the second step, which is in the steady state.
  bool measures_now() const;

  /// Returns whether all further steps take the same memory: if they may become a CUDA graph, it must have been
  /// captured.
  bool is_steady() const;

  DeviceMemory predicted_memory() const;

  void log_memory();

  /// Passes the monitor's report to the logger, at most every few seconds unless `now`.
  void log_monitor(bool now);
  MonitorReport with_memory(MonitorReport report) const;

  /// Logs that a step ran out of memory and was retried in smaller parts.
  absl::Status log_split();

  /// Logs the memory of the GPUs of all ranks.
  absl::Status log_gpu_memory();

  /// Logs once that steps are captured, and once that they no longer are.
  void log_graphs();

  void log_skips(bool wait);

  /// Restores weights and optimizer of the last checkpoint and continues with the next rows. Without a checkpoint the
  /// skipped step is the only consequence.
  absl::Status roll_back();

  void vote();

  /// Writes the last log record, evaluation and checkpoint. See Note [End of an interrupted run].
  absl::Status end();

  /// Starts or ends the recording of steps (TrainerOptions::profile_step). Called between steps.
  absl::Status record_profile();

  /// Ends the recording of steps, writes it and logs where.
  absl::Status write_profile();

  /// Returns the callbacks that the monitor's thread may call.
  MonitorSources monitor_sources();

  /// Averages the metrics of the last step over all ranks, once.
  void average_metrics();

  /// Starts to read the scalars of the step; the record is logged when they are on the host.
  absl::Status log_step();

  /// Learning rates of the last step. See Note [Learning rate of a record].
  LateRates rates_of_last_step();

  /// Adds memory and utilisation of every GPU, including those of other ranks.
  absl::Status add_gpus(LogRecord& record);

  double epoch_fraction() const;

  bool evaluation_due() const;

  /// Evaluates. If that fails and a save is due, writes the checkpoint before it returns the error. See
  /// Note [Failed evaluation].
  absl::Status evaluate_step(bool save_due);

  /// Evaluates a resumed step whose evaluation failed in the run that saved it. See Note [Failed evaluation].
  absl::Status evaluate_again();

  /// Updates the best step, the plateau schedule and early stopping, and logs the metrics.
  void record_evaluation(Metrics metrics, Clock::time_point start);

  /// Excludes evaluation and saves from the measured samples per second. end_pause returns the seconds between.
  Clock::time_point begin_pause();

  double end_pause(Clock::time_point start);

  /// Saves a checkpoint. The first rank (with sharding every rank) writes it in a background thread; training continues
  /// as soon as the weights are copied. See Note [Background saves] in background_saves.cpp.
  absl::Status save();

  /// Starts a save in which each rank writes its parts of the divided training state.
  void begin_save_together(CheckpointContents contents, const absl::Status& logged,
                           const detail::ParameterShards& shards);

  /// Waits until the running save, if any, has copied the optimizer's state. Call it before an update.
  void wait_for_copy();

  /// Waits for the running save, if any. All ranks continue, or all end. Call it before reading or naming the last
  /// checkpoint.
  absl::Status finish_save();

  /// Warns once if older checkpoints cannot be deleted.
  void warn_of_old_checkpoints();

  /// Logs once if the ranks have no common file system to write a checkpoint together.
  void warn_of_separate_disks();

  /// Ends the run soon after a failed save. Several ranks learn of it together, in finish_save().
  absl::Status check_background_save() {
    saves_.release_unused_buffer();
    return !group_ && saves_.has_ended() ? finish_save() : absl::OkStatus();
  }

  RunShape shape() const;

  RunParts parts() {
    return {devices_,
            optimizer_,
            scheduler_.get(),
            step_.scaler(),
            loader_,
            step_.averages(),
            detail::sharded_copies(devices_, step_)};
  }

  DeviceReplicator& devices_;
  Optimizer& optimizer_;
  const TrainerOptions& options_;
  Prefetcher& loader_;
  LossFunction loss_;
  LossFunction validation_loss_;  // null: loss_
  FitOptions fit_;
  EarlierFits& earlier_;
  ProcessGroup* group_;  // nullptr: one process
  std::unique_ptr<LRScheduler> scheduler_;
  TrainStep step_;
  std::atomic<bool> wrote_alone_{false};  // set by the thread of saves_
  BackgroundSaves saves_;

  RunProgress progress_;
  TrainerResult result_;
  int64_t first_step_ = 0;
  int64_t last_saved_ = -1;
  bool warned_of_old_checkpoints_ = false;
  bool warned_of_separate_disks_ = false;
  SkippedSteps skipped_;
  StepRecords records_;
  StopPolicy stop_;
  Validation validation_;
  int64_t rollbacks_ = 0, rolled_back_to_ = -1;
  bool uses_graphs_ = step_.uses_graphs();
  int64_t captures_ = 0;
  StepMetrics last_metrics_;
  double last_lr_ = 0;     // of the last step, before the groups' multiples, while the host knows it
  bool averaged_ = false;  // last_metrics_ are averaged over the ranks
  Clock::time_point start_, interval_start_;
  Clock::time_point reported_;  // the monitor, to the logger
  double pause_seconds_ = 0;
  double save_seconds_ = 0;        // in which saves blocked training since the last record
  double background_seconds_ = 0;  // in which saves were written up to the last record
  int64_t interval_rows_ = 0;
  double interval_weight_ = 0;
  PrefetcherStats first_stats_;
  StepProfile profile_;
  std::optional<detail::RealMemory> real_memory_;  // from the second step until the steady state
  std::optional<Monitor> monitor_;                 // its thread reads step_, so it is destroyed first
};

}  // namespace trainkit
