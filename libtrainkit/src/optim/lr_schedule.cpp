#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "core/option_problems.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/optim/lr_scheduler.h"

namespace trainkit {
namespace {

struct Problems : detail::OptionProblems {
  Problems& steps(int64_t steps, const char* name) { return require(steps >= 1, name, ">= 1", steps), *this; }
  Problems& factor(double factor, const char* name) {
    return require(detail::finite_not_negative(factor), name, "finite and >= 0", factor), *this;
  }
};

void check(const char* schedule, const detail::OptionProblems& problems) {
  TORCH_CHECK_VALUE(problems.empty(), schedule, ": ", problems.text());
}

/// Follows half a cosine wave from `start` to `end` while `part` goes from 0 to 1.
double anneal_cosine(double start, double end, double part) {
  return end + (start - end) / 2 * (std::cos(std::numbers::pi * part) + 1);
}

double anneal_linear(double start, double end, double part) { return start + (end - start) * part; }

double part_of(int64_t step, int64_t total) { return static_cast<double>(step) / static_cast<double>(total); }

}  // namespace

LinearLR::LinearLR(const LinearLROptions& options) : options_(options) {
  check("LinearLR", Problems()
                        .factor(options.start_factor, "start_factor")
                        .factor(options.end_factor, "end_factor")
                        .steps(options.total_steps, "total_steps"));
}

double LinearLR::factor(int64_t step) const {
  const double part = part_of(std::min(step, options_.total_steps), options_.total_steps);
  return anneal_linear(options_.start_factor, options_.end_factor, part);
}

CosineAnnealingLR::CosineAnnealingLR(const CosineAnnealingLROptions& options) : options_(options) {
  check("CosineAnnealingLR",
        Problems().steps(options.total_steps, "total_steps").factor(options.min_factor, "min_factor"));
}

double CosineAnnealingLR::factor(int64_t step) const {
  return anneal_cosine(1.0, options_.min_factor, part_of(std::min(step, options_.total_steps), options_.total_steps));
}

CosineAnnealingWarmRestarts::CosineAnnealingWarmRestarts(const CosineAnnealingWarmRestartsOptions& options)
    : options_(options) {
  check("CosineAnnealingWarmRestarts",
        Problems().steps(options.t_0, "t_0").steps(options.t_mult, "t_mult").factor(options.min_factor, "min_factor"));
}

double CosineAnnealingWarmRestarts::factor(int64_t step) const {
  int64_t period = options_.t_0;
  if (options_.t_mult == 1) {
    step %= period;
  } else {
    while (step >= period) {  // at most 63 iterations: the period at least doubles
      step -= period;
      period *= options_.t_mult;
    }
  }
  return anneal_cosine(1.0, options_.min_factor, part_of(step, period));
}

StepLR::StepLR(const StepLROptions& options) : options_(options) {
  check("StepLR", Problems().steps(options.step_size, "step_size").factor(options.gamma, "gamma"));
}

double StepLR::factor(int64_t step) const {
  const int64_t drops = step / options_.step_size;
  return std::pow(options_.gamma, static_cast<double>(drops));
}

OneCycleLR::OneCycleLR(const OneCycleLROptions& options) : options_(options) {
  check("OneCycleLR", detail::OptionProblems()
                          .require(options.total_steps >= 2, "total_steps", ">= 2", options.total_steps)
                          .require(options.pct_start > 0 && options.pct_start < (options.three_phase ? 0.5 : 1.0),
                                   "pct_start", options.three_phase ? "in (0, 0.5)" : "in (0, 1)", options.pct_start)
                          .require(options.div_factor >= 1 && std::isfinite(options.div_factor), "div_factor",
                                   "finite and >= 1", options.div_factor)
                          .require(options.final_div_factor > 0 && std::isfinite(options.final_div_factor),
                                   "final_div_factor", "finite and > 0", options.final_div_factor));
}

double OneCycleLR::factor(int64_t step) const {
  struct Phase {
    double end_step, start, end;
  };
  const double total = static_cast<double>(options_.total_steps);
  const double first = 1.0 / options_.div_factor;
  const double last = first / options_.final_div_factor;
  const double top = options_.pct_start * total - 1;
  const std::vector<Phase> phases = options_.three_phase
                                        ? std::vector<Phase>{{top, first, 1.0},
                                                             {2 * options_.pct_start * total - 2, 1.0, first},
                                                             {total - 1, first, last}}
                                        : std::vector<Phase>{{top, first, 1.0}, {total - 1, 1.0, last}};
  const double at = std::min(static_cast<double>(step), total - 1);
  double start_step = 0;
  for (size_t i = 0; i < phases.size(); ++i) {
    const Phase& phase = phases[i];
    if (at <= phase.end_step || i + 1 == phases.size()) {
      const bool is_empty = phase.end_step <= start_step;  // pct_start * total_steps == 1
      const double part = is_empty ? 1.0 : (at - start_step) / (phase.end_step - start_step);
      return options_.linear ? anneal_linear(phase.start, phase.end, part)
                             : anneal_cosine(phase.start, phase.end, part);
    }
    start_step = phase.end_step;
  }
  return last;
}

WarmupLR::WarmupLR(const WarmupOptions& options, std::shared_ptr<const LRSchedule> schedule)
    : warmup_steps_(options.warmup_steps),
      start_factor_(options.start_factor.value_or(1.0 / static_cast<double>(options.warmup_steps + 1))),
      schedule_(std::move(schedule)) {
  TORCH_CHECK_VALUE(schedule_ != nullptr, "WarmupLR: the schedule must not be null");
  check("WarmupLR", Problems()
                        .factor(start_factor_, "start_factor")
                        .require(warmup_steps_ >= 0, "warmup_steps", ">= 0", warmup_steps_));
}

double WarmupLR::factor(int64_t step) const {
  if (step >= warmup_steps_) return schedule_->factor(step - warmup_steps_);
  return anneal_linear(start_factor_, 1.0, part_of(step, warmup_steps_));
}

const std::vector<std::string>& schedule_names() {
  static const auto& names =
      *new std::vector<std::string>{"constant", "linear", "cosine", "cosine_restarts", "step", "one_cycle"};
  return names;
}

absl::StatusOr<std::shared_ptr<const LRSchedule>> create_schedule(const ScheduleOptions& options) {
  const auto& names = schedule_names();
  const auto error = [](std::string field, std::string problem, std::string got, std::string hint) {
    return to_status({.exit_code = ExitCode::kConfig,
                      .id = "config.schedule",
                      .field = std::move(field),
                      .problem = std::move(problem),
                      .got = std::move(got),
                      .hint = std::move(hint)},
                     absl::StatusCode::kInvalidArgument);
  };
  if (std::find(names.begin(), names.end(), options.name) == names.end()) {
    const std::string near = nearest_name(options.name, names);
    return error("scheduler", "unknown schedule", options.name, near.empty() ? "" : "did you mean '" + near + "'?");
  }
  const bool needs_length = options.name != "constant" && options.name != "step";
  const int64_t steps = options.total_steps - options.warmup_steps;
  detail::OptionProblems problems;
  problems.require(options.warmup_steps >= 0, "warmup_steps", ">= 0", options.warmup_steps)
      .require(!needs_length || steps >= (options.name == "one_cycle" ? 2 : 1),
               "total_steps (" + std::to_string(options.total_steps) + ") must exceed warmup_steps (" +
                   std::to_string(options.warmup_steps) + ")");
  if (!problems.empty()) return error("scheduler", problems.text(), options.name, "");
  const auto period = [&](int64_t share) {
    return options.period_steps != 0 ? options.period_steps : std::max<int64_t>(1, steps / share);
  };
  try {
    std::shared_ptr<const LRSchedule> schedule;
    if (options.name == "constant") {
      schedule = std::make_shared<ConstantLR>();
    } else if (options.name == "linear") {
      schedule = std::make_shared<LinearLR>(LinearLROptions{.end_factor = options.min_factor, .total_steps = steps});
    } else if (options.name == "cosine") {
      schedule = std::make_shared<CosineAnnealingLR>(
          CosineAnnealingLROptions{.total_steps = steps, .min_factor = options.min_factor});
    } else if (options.name == "cosine_restarts") {
      schedule = std::make_shared<CosineAnnealingWarmRestarts>(CosineAnnealingWarmRestartsOptions{
          .t_0 = period(4), .t_mult = options.period_growth, .min_factor = options.min_factor});
    } else if (options.name == "step") {
      schedule = std::make_shared<StepLR>(StepLROptions{.step_size = period(3), .gamma = options.gamma});
    } else {
      schedule = std::make_shared<OneCycleLR>(OneCycleLROptions{.total_steps = steps});
    }
    if (options.warmup_steps == 0) return schedule;
    return std::make_shared<const WarmupLR>(WarmupOptions{.warmup_steps = options.warmup_steps}, std::move(schedule));
  } catch (const c10::ValueError& bad) {
    return error("scheduler", bad.what_without_backtrace(), options.name, "");
  }
}

}  // namespace trainkit
