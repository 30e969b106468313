#include "train/records/skipped_steps.h"

#include <fmt/format.h>

#include <utility>

#include "train/records/step_records.h"
#include "trainkit/core/error.h"

namespace trainkit {

void SkippedSteps::add(int64_t step, const StepMetrics& metrics) {
  if (!metrics.skipped_in_a_row.defined()) return;
  pending_.push_back({.step = step,
                      .cause = metrics.first_nonfinite,
                      .row_indices = metrics.row_indices,
                      .rows = metrics.rows,
                      .in_a_row = LateScalars({metrics.skipped_in_a_row})});
}

std::vector<std::string> SkippedSteps::take(bool wait) {
  std::vector<std::string> lines;
  while (!pending_.empty() && (wait || pending_.front().in_a_row.ready())) {
    Pending step = std::move(pending_.front());
    pending_.pop_front();
    in_a_row_ = static_cast<int64_t>(step.in_a_row.values()[0]);
    if (in_a_row_ == 0) continue;
    ++total_;
    last_step_ = step.step;
    cause_ = std::move(step.cause);
    rows_ = rows_to_check(step.row_indices, step.rows);
    lines.push_back(fmt::format("step {} is skipped: its gradients are not finite{}{}", last_step_,
                                cause_.empty() ? "" : "; first: " + cause_,
                                in_a_row_ > 1 ? fmt::format(" ({} in a row)", in_a_row_) : ""));
  }
  return lines;
}

void SkippedSteps::reset_consecutive() {
  pending_.clear();
  in_a_row_ = 0;
}

absl::Status SkippedSteps::error() const {
  const std::string steps = in_a_row_ > 1 ? fmt::format("steps {} to {}", last_step_ - in_a_row_ + 1, last_step_)
                                          : fmt::format("step {}", last_step_);
  return to_status(
      {.exit_code = ExitCode::kNumerics,
       .id = "train.nonfinite",
       .field = "gradients",
       .problem = "are not finite at " + steps + (cause_.empty() ? "" : ": " + cause_),
       .hint = rows_ + "lower the learning rate, clip gradients (TrainerOptions::grad_clip, --grad_clip 1), use "
                       "--precision fp32, or skip such steps (TrainerOptions::on_nonfinite, --on_nonfinite skip)"});
}

}  // namespace trainkit
