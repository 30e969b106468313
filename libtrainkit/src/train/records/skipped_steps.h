#pragma once
// Tracks skipped steps without waiting for the device. Internal to Trainer.

#include <absl/status/status.h>

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "core/device/late_scalars.h"
#include "trainkit/train/train_step.h"

namespace trainkit {

/// Counts skipped steps. The device decides whether a step is skipped; the host learns it some steps later, through
/// LateScalars.
class SkippedSteps {
 public:
  /// @param most consecutive skipped steps that end the run.
  explicit SkippedSteps(int64_t most) : most_(most) {}

  /// Starts reading the skip counter of `step` from `metrics`.
  void add(int64_t step, const StepMetrics& metrics);

  /// Returns messages about the steps whose results have arrived since the last call; with `wait`, of all steps.
  std::vector<std::string> take(bool wait);

  bool too_many() const { return in_a_row_ >= most_; }
  /// Returns whether the last known step was skipped.
  bool skipped_last() const { return in_a_row_ > 0; }
  /// Resets the count of consecutive skips, after a rollback.
  void reset_consecutive();
  int64_t total() const { return total_; }
  /// Returns the error for too many skipped steps: exit code 9.
  absl::Status error() const;

 private:
  struct Pending {
    int64_t step = 0;
    std::string cause;
    std::vector<int64_t> row_indices;  // StepMetrics::row_indices
    int64_t rows = 0;
    LateScalars in_a_row;
  };

  int64_t most_;
  std::deque<Pending> pending_;
  int64_t in_a_row_ = 0, total_ = 0, last_step_ = 0;
  std::string cause_, rows_;
};

}  // namespace trainkit
