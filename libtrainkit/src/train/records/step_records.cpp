#include "train/records/step_records.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "logging/field_names.h"
#include "optim/optimizer_parts.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit {

void StepRecords::add(LogRecord record, const StepMetrics& metrics, LateRates rates) {
  std::vector<std::pair<std::string, double>> values;
  values.reserve(metrics.metrics.size() + 2 + record.values.size());
  std::vector<at::Tensor> scalars;
  scalars.reserve(metrics.metrics.size() + 2 + rates.scalars.size());
  const auto add_scalar = [&](const std::string& name, const at::Tensor& scalar) {
    values.emplace_back(name, 0);  // emit() sets the value
    scalars.push_back(scalar);
  };
  add_scalar(detail::fields::kLoss, metrics.loss);
  for (const auto& [name, value] : metrics.metrics) add_scalar(name, value);
  if (metrics.grad_norm.defined()) add_scalar(detail::fields::kGradNorm, metrics.grad_norm);
  const size_t named = scalars.size();
  scalars.insert(scalars.end(), rates.scalars.begin(), rates.scalars.end());
  std::move(record.values.begin(), record.values.end(), std::back_inserter(values));
  record.values = std::move(values);
  pending_.push_back({.record = std::move(record),
                      .named = named,
                      .scalars = LateScalars(scalars),
                      .cause = metrics.first_nonfinite,
                      .row_indices = metrics.row_indices,
                      .rows = metrics.rows,
                      .rates = std::move(rates)});
}

std::string rows_to_check(const std::vector<int64_t>& row_indices, int64_t rows) {
  if (row_indices.empty()) return "";
  const int64_t more = rows - std::ssize(row_indices);
  return fmt::format("check the step's rows first: {}{} of the data set; then ", fmt::join(row_indices, ", "),
                     more > 0 ? fmt::format(" and {} more", more) : "");
}

void LateRates::append(LateRates rates, std::vector<std::string> names) {
  players.push_back({.names = std::move(names), .first = scalars.size(), .values = std::move(rates.values)});
  scalars.insert(scalars.end(), rates.scalars.begin(), rates.scalars.end());
}

absl::Status StepRecords::emit(bool wait) {
  while (!pending_.empty() && (wait || pending_.front().scalars.ready())) {
    Pending pending = std::move(pending_.front());
    pending_.pop_front();
    const std::vector<double> scalars = pending.scalars.values();
    for (size_t i = 0; i < pending.named; ++i) pending.record.values[i].second = scalars[i];
    const double* const rates = scalars.data() + pending.named;
    pending.record.lr = pending.rates.values(rates);
    for (const LateRates::OfPlayer& player : pending.rates.players) {
      const std::vector<double> lrs = player.values(rates + player.first);
      for (size_t i = 0; i < lrs.size(); ++i) pending.record.values.emplace_back(player.names[i], lrs[i]);
    }
    last_loss_ = scalars[0];
    if (logger_) logger_->log(pending.record);
    TRAINKIT_RETURN_IF_ERROR(check_finite(scalars[0], pending));
  }
  return absl::OkStatus();
}

absl::Status StepRecords::check_finite(double loss, const Pending& pending) {
  nonfinite_ = std::isfinite(loss) ? 0 : nonfinite_ + 1;
  if (most_nonfinite_ == 0 || nonfinite_ < most_nonfinite_) return absl::OkStatus();
  return to_status({.exit_code = ExitCode::kNumerics,
                    .id = "train.nonfinite",
                    .field = detail::fields::kLoss,
                    .problem = "is not finite at step " + std::to_string(pending.record.step) +
                               (pending.cause.empty() ? "" : ": " + pending.cause),
                    .got = std::isnan(loss) ? "nan" : "inf",
                    .hint = rows_to_check(pending.row_indices, pending.rows) +
                            "lower the learning rate, clip gradients (TrainerOptions::grad_clip, --grad_clip 1) or use "
                            "--precision fp32"});
}

// Note [Learning rate of a record]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// A record has the learning rates with which its step updated the weights, but at the end of a step the optimizer has
// those of the next one. The host's rate is kept before the update. Where a schedule runs on the device, the host
// computes the rate when the count of applied steps arrives with the other scalars: a step that was applied had the
// rate of the count before it, a skipped one that of the same count.

LateRates rates_of_step(const Optimizer& optimizer, const LRScheduler* scheduler, const StepMetrics& metrics,
                        double host_lr) {
  const std::vector<at::Tensor>& on_device = detail::OptimizerParts::of(optimizer).rates.on_device();
  const auto times = [&optimizer](double lr) {
    std::vector<double> lrs;
    for (const ParamGroup& group : optimizer.param_groups()) lrs.push_back(lr * group.lr_multiple);
    return lrs;
  };
  if (on_device.empty()) return {.scalars = {}, .values = [=](const double*) { return times(host_lr); }};
  if (!scheduler) {
    return {.scalars = on_device, .values = [count = on_device.size()](const double* arrived) {
              return std::vector<double>(arrived, arrived + count);
            }};
  }
  const at::Tensor& skipped = metrics.skipped_in_a_row;
  const bool may_skip = skipped.defined(), counts = may_skip || metrics.world_weight > 0;
  LateRates rates{.scalars = {optimizer.step_count()}};
  if (may_skip) rates.scalars.push_back(skipped);
  rates.values = [=](const double* arrived) {
    const bool applied = counts && !(may_skip && arrived[1] > 0);
    return times(scheduler->lr_after(static_cast<int64_t>(arrived[0]) - (applied ? 1 : 0)));
  };
  return rates;
}

}  // namespace trainkit
