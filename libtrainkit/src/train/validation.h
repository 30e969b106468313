#pragma once
// The evaluations of a run. Internal to Trainer.

#include <absl/status/statusor.h>

#include "trainkit/train/trainer.h"

namespace trainkit {

/// Evaluates the model during a run. Keeps references to the arguments.
class Validation {
 public:
  /// @param loss with the validation loader of `fit`, which must not be null when evaluate() is called
  Validation(DeviceReplicator& devices, TrainStep& step, const TrainerOptions& options, const FitOptions& fit,
             LossFunction loss)
      : devices_(devices), step_(step), options_(options), fit_(fit), loss_(std::move(loss)) {}

  /// Evaluates the model of step `step`, with the averages of its weights if the run keeps them, and calls
  /// on_evaluation. The metrics contain the monitored one. Returns an error on all ranks if one of them fails.
  absl::StatusOr<Metrics> evaluate(int64_t step);

 private:
  absl::StatusOr<Metrics> evaluate_here(int64_t step);
  absl::StatusOr<Metrics> means();

  DeviceReplicator& devices_;
  TrainStep& step_;
  const TrainerOptions& options_;
  const FitOptions& fit_;
  LossFunction loss_;
};

}  // namespace trainkit
