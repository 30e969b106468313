#include "trainkit/optim/lr_scheduler.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "core/base/option_problems.h"
#include "optim/optimizer_parts.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

/// Size of the first table, in steps; each later table at least doubles it.
constexpr int64_t kFirstTableSteps = 4096;

void check(const PlateauOptions& options) {
  using detail::finite_not_negative;
  detail::OptionProblems problems;
  problems.require(options.factor > 0 && options.factor < 1, "factor", "in (0, 1)", options.factor)
      .require(options.patience >= 0, "patience", ">= 0", options.patience)
      .require(options.cooldown >= 0, "cooldown", ">= 0", options.cooldown)
      .require(finite_not_negative(options.threshold), "threshold", "finite and >= 0", options.threshold)
      .require(finite_not_negative(options.min_lr), "min_lr", "finite and >= 0", options.min_lr)
      .require(finite_not_negative(options.eps), "eps", "finite and >= 0", options.eps);
  TORCH_CHECK_VALUE(problems.empty(), "PlateauOptions: ", problems.text());
}

double worst(const std::optional<PlateauOptions>& plateau) {
  const double infinity = std::numeric_limits<double>::infinity();
  return plateau && plateau->maximize ? -infinity : infinity;
}

}  // namespace

// Note [Learning-rate table]
//
// With a GradScaler on a GPU only the device knows how many steps were applied (see Note [Loss scaling without host
// reads]). The scheduler then evaluates the schedule on the host for the first N steps, copies the factors to the
// device as table_, and looks up factor and learning rate there: lr = table_[min(step_count, N - 1)] * device_base_lr_.
//
// - The host knows an upper bound of the step count (StepCounts::upper_bound). reserve() keeps the table longer than
//   this bound, so a lookup outside a CUDA graph never reaches the end.
// - A captured step() reads the table of its capture. A longer table is a new tensor, so the caller of reserve()
//   captures again when reserved_steps() changes.
// - device_base_lr_ is written by set_base_lr() and never by step(): a captured step() would replay the value of its
//   capture.

LRScheduler::LRScheduler(Optimizer& optimizer, std::shared_ptr<const LRSchedule> schedule,
                         std::optional<PlateauOptions> plateau)
    : optimizer_(&optimizer),
      schedule_(std::move(schedule)),
      plateau_(plateau),
      base_lr_(optimizer.initial_lr()),
      best_(worst(plateau)) {
  TORCH_CHECK_VALUE(schedule_ != nullptr, "LRScheduler: the schedule must not be null");
  if (plateau_) check(*plateau_);
  if (detail::OptimizerParts::of(optimizer).rates.note_scheduler()) first_step_ = applied_steps();
  apply();
}

void LRScheduler::step() { apply(); }

void LRScheduler::apply() {
  detail::OptimizerParts& optimizer = detail::OptimizerParts::of(*optimizer_);
  if (const std::optional<int64_t> count = optimizer.counts.known()) return optimizer.rates.set(lr_after(*count));
  const at::NoGradGuard no_grad;
  reserve(optimizer.counts.upper_bound() - first_step_ + 1);
  index_.copy_(optimizer.counts.total());
  if (first_step_ > 0) index_.sub_(first_step_).clamp_min_(0);
  index_.clamp_max_(table_.numel() - 1);
  optimizer.rates.set_on_device(table_.index_select(0, index_).mul_(device_base_lr_));
}

/// Writes the base learning rate to the device here and not in step(), see Note [Learning-rate table].
void LRScheduler::set_base_lr(double base_lr) {
  base_lr_ = base_lr;
  if (device_base_lr_.defined()) device_base_lr_.fill_(base_lr);
  apply();
}

void LRScheduler::reserve(int64_t steps) {
  if (detail::OptimizerParts::of(*optimizer_).counts.known()) return;
  const int64_t old_steps = table_.defined() ? table_.numel() : 0;
  if (steps <= old_steps) return;
  const int64_t new_steps = std::max({steps, 2 * old_steps, kFirstTableSteps});
  at::Tensor factors = at::empty({new_steps}, at::kDouble);
  double* out = factors.mutable_data_ptr<double>();
  for (int64_t i = 0; i < new_steps; ++i) out[i] = schedule_->factor(i);
  const at::Device device = optimizer_->step_count().device();
  // Allocate all tensors before changing a member: if one allocation fails, the next step retries.
  at::Tensor table = factors.to(device), index = index_, base_lr = device_base_lr_;
  if (!index.defined()) {
    index = at::empty({1}, at::device(device).dtype(at::kLong));
    base_lr = at::full({1}, base_lr_, at::device(device).dtype(at::kDouble));
  }
  table_ = std::move(table);
  index_ = std::move(index);
  device_base_lr_ = std::move(base_lr);
}

bool LRScheduler::is_better(double metric) const {
  const double sign = plateau_->maximize ? -1 : 1;
  if (!plateau_->relative_threshold) return sign * metric < sign * best_ - plateau_->threshold;
  return sign * metric < sign * best_ * (1 - sign * plateau_->threshold);
}

bool LRScheduler::step_metric(double metric) {
  TORCH_CHECK(plateau_, "LRScheduler: step_metric() needs PlateauOptions");
  if (is_better(metric)) {
    best_ = metric;
    num_bad_epochs_ = 0;
  } else {
    ++num_bad_epochs_;
  }
  if (cooldown_counter_ > 0) {
    --cooldown_counter_;
    num_bad_epochs_ = 0;
  }
  if (num_bad_epochs_ <= plateau_->patience) return false;
  cooldown_counter_ = plateau_->cooldown;
  num_bad_epochs_ = 0;
  const double lower = std::max(base_lr_ * plateau_->factor, plateau_->min_lr);
  if (base_lr_ - lower <= plateau_->eps) return false;
  set_base_lr(lower);
  return true;
}

int64_t LRScheduler::applied_steps() const {
  const detail::StepCounts& counts = detail::OptimizerParts::of(*optimizer_).counts;
  if (counts.upper_bound() == 0) return 0;
  const std::optional<int64_t> known = counts.known();
  return known ? *known : optimizer_->step_count().item<int64_t>();
}

double LRScheduler::lr() const { return lr_after(applied_steps()); }

double LRScheduler::lr_after(int64_t applied_steps) const {
  return base_lr_ * schedule_->factor(std::max<int64_t>(0, applied_steps - first_step_));
}

StateDict LRScheduler::state_dict() const {
  StateDict state{{"base_lr", base_lr_}, {"first_step", first_step_}};
  if (plateau_) {
    state["best"] = best_;
    state["num_bad_epochs"] = num_bad_epochs_;
    state["cooldown_counter"] = cooldown_counter_;
  }
  return state;
}

absl::Status LRScheduler::load_state_dict(const StateDict& state) {
  const auto out_of_range = [](const char* field, double got) {
    return to_status({.exit_code = ExitCode::kWeights,
                      .id = "ckpt.schedule",
                      .field = field,
                      .problem = "is out of range in the saved schedule",
                      .got = std::to_string(got)},
                     absl::StatusCode::kInvalidArgument);
  };
  TRAINKIT_ASSIGN_OR_RETURN(const double base_lr, get_state<double>(state, "base_lr"));
  if (!detail::finite_not_negative(base_lr)) return out_of_range("base_lr", base_lr);
  int64_t first_step = 0;
  if (state.contains("first_step")) {
    TRAINKIT_ASSIGN_OR_RETURN(first_step, get_state<int64_t>(state, "first_step"));
    if (first_step < 0) return out_of_range("first_step", static_cast<double>(first_step));
  }
  if (plateau_) {
    TRAINKIT_ASSIGN_OR_RETURN(const double best, get_state<double>(state, "best"));
    TRAINKIT_ASSIGN_OR_RETURN(const int64_t bad, get_state<int64_t>(state, "num_bad_epochs"));
    TRAINKIT_ASSIGN_OR_RETURN(const int64_t cooldown, get_state<int64_t>(state, "cooldown_counter"));
    if (std::isnan(best)) return out_of_range("best", best);
    if (bad < 0) return out_of_range("num_bad_epochs", static_cast<double>(bad));
    if (cooldown < 0) return out_of_range("cooldown_counter", static_cast<double>(cooldown));
    best_ = best;
    num_bad_epochs_ = bad;
    cooldown_counter_ = cooldown;
  }
  first_step_ = first_step;
  set_base_lr(base_lr);
  return absl::OkStatus();
}

}  // namespace trainkit
