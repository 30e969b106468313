#pragma once
// The evaluations of a run and what follows from them: the best step, the plateau, early stopping.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <optional>

#include "train/run/fit_context.h"
#include "train/run/run_events.h"
#include "train/run/stop_policy.h"
#include "train/run/training_log.h"
#include "train/run/validation.h"
#include "trainkit/train/checkpoint.h"
#include "trainkit/train/trainer.h"

namespace trainkit {

/// Keeps references to the arguments.
class RunEvaluations {
 public:
  /// Wraps the loss functions and on_evaluation of `fit`.
  /// @param loss of the training, for sets without their own
  RunEvaluations(FitContext& run, FitOptions& fit, const LossFunction& loss, TrainingLog& log, StopPolicy& stop,
                 RunEvents& events);

  /// Opens the best model, after the checkpoint to resume from was read and before anything is written.
  absl::Status open();
  /// Whether an evaluation follows the step that has ended.
  bool is_due() const;
  /// Whether the evaluation of a resumed step is missing, see Note [Failed evaluation] in training_run.cpp.
  bool is_missing() const;
  /// Whether the last step has no evaluation yet.
  bool has_last() const;

  /// Evaluates, notes and logs the step that has ended. The weights are those that all ranks agree on.
  absl::StatusOr<Metrics> run();

 private:
  const LossFunction& wrap_losses(const LossFunction& loss);
  void wrap_callback();
  /// Updates the best step, the plateau schedule and early stopping.
  void note(const Metrics& metrics);

  FitContext& run_;
  FitOptions& fit_;
  TrainingLog& log_;
  StopPolicy& stop_;
  RunEvents& events_;
  Validation validation_;
  std::optional<BestModel> best_;
};

}  // namespace trainkit
