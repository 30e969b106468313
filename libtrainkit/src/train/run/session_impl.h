#pragma once
// The run of a Session, its errors, and its calls from several threads.

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <c10/util/FunctionRef.h>

#include <atomic>
#include <memory>
#include <optional>

#include "train/run/trainer_impl.h"
#include "train/run/training_run.h"
#include "trainkit/train/session.h"
#include "trainkit/train/trainer.h"

namespace trainkit {

class Session::Impl {
 public:
  explicit Impl(Trainer::Impl& trainer) : trainer_(trainer) {}
  ~Impl() { close(); }

  absl::Status begin(BatchSource* source, LossFunction loss, const FitOptions& options);
  absl::StatusOr<bool> step(const Batch* batch);
  absl::StatusOr<TrainerResult> finish();
  Progress progress() const;
  /// Calls something between steps. Its error does not end the session.
  absl::Status between_steps(c10::function_ref<absl::Status(TrainingRun&)> call);

  /// nullptr before begin(), and where there is nothing to do.
  TrainingRun* run() const { return run_.get(); }

 private:
  /// Calls a part of the run. Its error, or exception, ends the session.
  absl::Status guard(c10::function_ref<absl::Status()> call);
  void explain_out_of_memory(const absl::Status& status);
  /// Lets the Trainer begin another session.
  void close();

  Trainer::Impl& trainer_;
  TrainerOptions options_;
  std::optional<SignalWatch> signals_;
  std::unique_ptr<TrainingRun> run_;
  Logger* logger_ = nullptr;
  std::atomic<bool> is_busy_{false}, has_failed_{false};
  bool is_open_ = false;
  absl::Status error_;
  std::optional<TrainerResult> result_;
};

}  // namespace trainkit
