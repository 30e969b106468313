#include "step_records.h"

#include <cmath>
#include <utility>

#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit {

void StepRecords::add(LogRecord record, const StepMetrics& metrics, const std::vector<at::Tensor>& lrs) {
  Pending pending{.record = std::move(record), .names = {"loss"}};
  std::vector<at::Tensor> scalars = {metrics.loss};
  for (const auto& [name, value] : metrics.metrics) {
    pending.names.push_back(name);
    scalars.push_back(value);
  }
  if (metrics.grad_norm.defined()) {
    pending.names.push_back("grad_norm");
    scalars.push_back(metrics.grad_norm);
  }
  scalars.insert(scalars.end(), lrs.begin(), lrs.end());
  pending.scalars = LateScalars(scalars);
  pending_.push_back(std::move(pending));
}

absl::Status StepRecords::emit(bool wait) {
  while (!pending_.empty() && (wait || pending_.front().scalars.ready())) {
    Pending pending = std::move(pending_.front());
    pending_.pop_front();
    const std::vector<double> values = pending.scalars.values();
    std::vector<std::pair<std::string, double>> named;
    named.reserve(pending.names.size() + pending.record.values.size());
    for (size_t i = 0; i < pending.names.size(); ++i) named.emplace_back(std::move(pending.names[i]), values[i]);
    const auto lrs = values.begin() + static_cast<ptrdiff_t>(pending.names.size());
    if (lrs != values.end()) pending.record.lr.assign(lrs, values.end());
    for (auto& value : pending.record.values) named.push_back(std::move(value));
    pending.record.values = std::move(named);
    if (logger_) logger_->log(pending.record);
    TRAINKIT_RETURN_IF_ERROR(check_finite(values[0], pending.record.step));
  }
  return absl::OkStatus();
}

absl::Status StepRecords::check_finite(double loss, int64_t step) {
  nonfinite_ = std::isfinite(loss) ? 0 : nonfinite_ + 1;
  if (most_nonfinite_ == 0 || nonfinite_ < most_nonfinite_) return absl::OkStatus();
  return to_status({.exit_code = ExitCode::kNumerics,
                    .id = "train.nonfinite",
                    .field = "loss",
                    .problem = "is not finite at step " + std::to_string(step),
                    .got = std::isnan(loss) ? "nan" : "inf",
                    .hint = "lower the learning rate, clip gradients (--grad_clip 1) or use --precision fp32"});
}

}  // namespace trainkit
