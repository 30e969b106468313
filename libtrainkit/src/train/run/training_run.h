#pragma once
// One call of Trainer::fit. Internal to Trainer.

#include <absl/status/statusor.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <string>

#include "distributed/replicas/replica_strategy.h"
#include "train/records/skipped_steps.h"
#include "train/records/step_profile.h"
#include "train/run/fit_context.h"
#include "train/run/host_requests.h"
#include "train/run/run_evaluations.h"
#include "train/run/run_events.h"
#include "train/run/steady_state.h"
#include "train/run/stop_policy.h"
#include "train/run/training_log.h"
#include "train/run/training_saves.h"
#include "trainkit/train/trainer.h"

namespace trainkit {

/// What the calls of Trainer::fit so far leave for the next one.
struct EarlierFits {
  int64_t count = 0;
  int64_t steps = 0;
  RowTrace rows = {};
};

/// A run in steps: takes batches through them, and decides what is due after each. Keeps references to the arguments
/// but for `loss` and `fit`.
class TrainingRun {
 public:
  /// @param source nullptr if the caller passes each batch
  /// @param loss of the only optimizer
  TrainingRun(detail::ReplicaStrategy& devices, Trained trained, const TrainerOptions& options, BatchSource* source,
              LossFunction loss, const FitOptions& fit, EarlierFits& earlier);

  /// Resumes if requested, and opens what the run writes to. Call it first, once.
  absl::Status begin();
  /// Runs a step with the next batches of the source. Returns false, without a step, after the end of the run.
  absl::StatusOr<bool> step();
  /// Takes a batch of the caller; returns false after the end of the run.
  absl::StatusOr<bool> step(const Batch& batch);
  /// Ends the run, here if no limit is reached. Call it last, once.
  absl::StatusOr<TrainerResult> finish();

  /// Takes the requests of other threads, and reports where the run is.
  HostRequests& host() { return host_; }
  /// For changes between steps.
  FitContext& context() { return run_; }

 private:
  /// Calls a part of the step. If memory runs out there, not even one row at a time fits.
  void take_step(c10::function_ref<void()> call);

  /// Resumes if requested, opens the checkpoint folder and the logger, and checks whether any work is left. Changes no
  /// file before the checkpoint was read and the ranks agree.
  absl::Status prepare();

  /// Continues from the checkpoint that was read, after the logger was opened. Warns of `differs`.
  absl::Status continue_run(const std::string& differs, const std::vector<double>& asked_lrs);

  /// Continues at the step of run_.progress, whose weights have been loaded.
  void continue_at_step();

  /// Tells host() where the run is.
  void publish();

  absl::Status accumulate(const Batch& batch);
  absl::Status complete_step();
  /// Does what is due after a step: record, evaluation, checkpoint.
  absl::Status after_step();

  void vote();
  /// Returns the vote of all ranks in the step that has ended.
  int agreed_stop() const;

  absl::Status log_split();

  /// Restores weights and optimizer of the last checkpoint and continues with the next rows. Without a checkpoint the
  /// skipped step is the only consequence.
  absl::Status roll_back();

  /// Writes the last log record, evaluation and checkpoint. See Note [End of an interrupted run].
  absl::Status end();
  /// Writes the record of the last step.
  absl::Status end_steps();

  /// Starts or ends the recording of steps (TrainerOptions::profile_step). Called between steps.
  absl::Status record_profile();
  /// Ends the recording of steps, writes it and logs where; warns if it never began.
  absl::Status end_profile();

  /// Evaluates. If that fails and a save is due, writes the checkpoint before it returns the error. See
  /// Note [Failed evaluation].
  absl::Status evaluate(bool save_due);
  /// Saves a checkpoint, see TrainingSaves::save.
  absl::Status save();

  HostRequests host_;
  FitOptions fit_;
  RunEvents events_;
  FitContext run_;
  LossFunction loss_;
  EarlierFits& earlier_;
  TrainingLog log_;
  TrainingSaves saves_;
  SteadyState steady_;
  TrainerResult result_;
  SkippedSteps skipped_;
  StopPolicy stop_;
  RunEvaluations evaluations_;
  StepProfile profile_;
  /// Consecutive rollbacks to one step.
  struct Rollbacks {
    int64_t count = 0;
    int64_t to = -1;
  };
  Rollbacks rollbacks_;
};

}  // namespace trainkit
