#pragma once
// The evaluations of a run. Internal to Trainer.

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>

#include "trainkit/train/trainer.h"

namespace trainkit {

/// Returns a function that prints the progress of an evaluation on `logger`, which must outlive it: one line after ten
/// seconds and at most one per ten seconds, so that a short evaluation prints none. @param clock seconds of a steady
/// clock.
EvaluationProgress progress_lines(Logger& logger, int64_t step, std::function<double()> clock);

/// Evaluates the model during a run. Keeps references to the arguments.
class Validation {
 public:
  /// @param loss with the validation loader of `fit`, which must not be null when evaluate() is called
  Validation(DeviceReplicator& devices, TrainStep& step, const TrainerOptions& options, const FitOptions& fit,
             const LossFunction& loss)
      : devices_(devices), step_(step), options_(options), fit_(fit), loss_(loss) {}

  /// Evaluates the model of step `step`, with the averages of its weights if the run keeps them, and calls
  /// on_evaluation. The metrics contain the monitored one. Returns an error on all ranks if one of them fails.
  absl::StatusOr<Metrics> evaluate(int64_t step);

 private:
  absl::StatusOr<Metrics> evaluate_here(int64_t step);
  absl::StatusOr<Metrics> means(int64_t step);
  absl::StatusOr<Metrics> means_of(Prefetcher& loader, const LossFunction& loss, int64_t step);
  void call_back(int64_t step, Metrics& metrics);
  absl::StatusOr<Metrics> agree(Metrics metrics, ProcessGroup& group);

  DeviceReplicator& devices_;
  TrainStep& step_;
  const TrainerOptions& options_;
  const FitOptions& fit_;
  const LossFunction& loss_;
  bool warned_of_modes_ = false;
  bool warned_of_metric_ = false;
};

}  // namespace trainkit
