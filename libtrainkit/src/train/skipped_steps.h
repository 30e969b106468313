#pragma once
// Which steps were skipped, learnt when the device has said so. Internal to Trainer.

#include <absl/status/status.h>

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "train/late_scalars.h"
#include "trainkit/train/train_step.h"

namespace trainkit {

class SkippedSteps {
 public:
  /// `most` in a row are too many.
  explicit SkippedSteps(int64_t most) : most_(most) {}

  /// Starts reading what `metrics` say of `step`.
  void add(int64_t step, const StepMetrics& metrics);

  /// What has arrived since the last call, as lines to print; all there is with `wait`.
  std::vector<std::string> take(bool wait);

  bool too_many() const { return in_a_row_ >= most_; }
  /// Whether the last step that is known was skipped.
  bool skipped_last() const { return in_a_row_ > 0; }
  /// Begins to count in a row anew, after a rollback.
  void forget_row();
  int64_t total() const { return total_; }
  /// What ends the run when there are too many: exit code 9.
  absl::Status error() const;

 private:
  struct Pending {
    int64_t step = 0;
    std::string cause;
    LateScalars in_a_row;
  };

  int64_t most_;
  std::deque<Pending> pending_;
  int64_t in_a_row_ = 0, total_ = 0, last_step_ = 0;
  std::string cause_;
};

}  // namespace trainkit
