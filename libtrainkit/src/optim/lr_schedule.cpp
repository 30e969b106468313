#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "core/base/option_problems.h"
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

/// A schedule given as a function.
template <class Factor>
class FactorSchedule final : public LRSchedule {
 public:
  explicit FactorSchedule(Factor factor) : factor_(std::move(factor)) {}
  double factor(int64_t step) const override { return factor_(step); }

 private:
  Factor factor_;
};

template <class Factor>
std::shared_ptr<const LRSchedule> schedule_of(Factor factor) {
  return std::make_shared<const FactorSchedule<Factor>>(std::move(factor));
}

}  // namespace

std::shared_ptr<const LRSchedule> constant_lr() {
  return schedule_of([](int64_t) { return 1.0; });
}

std::shared_ptr<const LRSchedule> linear_lr(int64_t total_steps, double start_factor, double end_factor) {
  check("linear_lr", Problems()
                         .factor(start_factor, "start_factor")
                         .factor(end_factor, "end_factor")
                         .steps(total_steps, "total_steps"));
  return schedule_of([=](int64_t step) {
    return anneal_linear(start_factor, end_factor, part_of(std::min(step, total_steps), total_steps));
  });
}

std::shared_ptr<const LRSchedule> cosine_annealing_lr(int64_t total_steps, double min_factor) {
  check("cosine_annealing_lr", Problems().steps(total_steps, "total_steps").factor(min_factor, "min_factor"));
  return schedule_of(
      [=](int64_t step) { return anneal_cosine(1.0, min_factor, part_of(std::min(step, total_steps), total_steps)); });
}

std::shared_ptr<const LRSchedule> cosine_annealing_warm_restarts(int64_t t_0, int64_t t_mult, double min_factor) {
  check("cosine_annealing_warm_restarts",
        Problems().steps(t_0, "t_0").steps(t_mult, "t_mult").factor(min_factor, "min_factor"));
  return schedule_of([=](int64_t step) {
    int64_t period = t_0;
    if (t_mult == 1) {
      step %= period;
    } else {
      while (step >= period) {  // at most 63 iterations: the period at least doubles
        step -= period;
        period *= t_mult;
      }
    }
    return anneal_cosine(1.0, min_factor, part_of(step, period));
  });
}

std::shared_ptr<const LRSchedule> step_lr(int64_t step_size, double gamma) {
  check("step_lr", Problems().steps(step_size, "step_size").factor(gamma, "gamma"));
  return schedule_of([=](int64_t step) {
    const int64_t drops = step / step_size;
    return std::pow(gamma, static_cast<double>(drops));
  });
}

std::shared_ptr<const LRSchedule> multi_step_lr(std::vector<int64_t> milestones, double gamma) {
  const bool ascending = std::is_sorted(milestones.begin(), milestones.end());
  check("multi_step_lr", Problems()
                             .factor(gamma, "gamma")
                             .require(ascending && !milestones.empty() && milestones.front() >= 0,
                                      "milestones must be steps in ascending order, at least one"));
  return schedule_of([gamma, milestones = std::move(milestones)](int64_t step) {
    const auto passed = std::upper_bound(milestones.begin(), milestones.end(), step) - milestones.begin();
    return std::pow(gamma, static_cast<double>(passed));
  });
}

std::shared_ptr<const LRSchedule> exponential_lr(double gamma) {
  check("exponential_lr", Problems().require(gamma > 0 && gamma <= 1, "gamma", "in (0, 1]", gamma));
  return schedule_of([=](int64_t step) { return std::pow(gamma, static_cast<double>(step)); });
}

std::shared_ptr<const LRSchedule> polynomial_lr(int64_t total_steps, double power, double min_factor) {
  check("polynomial_lr",
        Problems().factor(power, "power").factor(min_factor, "min_factor").steps(total_steps, "total_steps"));
  return schedule_of([=](int64_t step) {
    const double left = 1.0 - part_of(std::min(step, total_steps), total_steps);
    return min_factor + (1.0 - min_factor) * std::pow(left, power);
  });
}

std::shared_ptr<const LRSchedule> one_cycle_lr(const OneCycleLROptions& options) {
  check("one_cycle_lr", detail::OptionProblems()
                            .require(options.total_steps >= 2, "total_steps", ">= 2", options.total_steps)
                            .require(options.pct_start > 0 && options.pct_start < (options.three_phase ? 0.5 : 1.0),
                                     "pct_start", options.three_phase ? "in (0, 0.5)" : "in (0, 1)", options.pct_start)
                            .require(options.div_factor >= 1 && std::isfinite(options.div_factor), "div_factor",
                                     "finite and >= 1", options.div_factor)
                            .require(options.final_div_factor > 0 && std::isfinite(options.final_div_factor),
                                     "final_div_factor", "finite and > 0", options.final_div_factor));
  struct Phase {
    double end_step, start, end;
  };
  const double total = static_cast<double>(options.total_steps);
  const double first = 1.0 / options.div_factor;
  const double last = first / options.final_div_factor;
  const double top = options.pct_start * total - 1;
  const std::vector<Phase> phases = options.three_phase
                                        ? std::vector<Phase>{{top, first, 1.0},
                                                             {2 * options.pct_start * total - 2, 1.0, first},
                                                             {total - 1, first, last}}
                                        : std::vector<Phase>{{top, first, 1.0}, {total - 1, 1.0, last}};
  return schedule_of([=, linear = options.linear](int64_t step) {
    const double at = std::min(static_cast<double>(step), total - 1);
    double start_step = 0;
    for (size_t i = 0; i < phases.size(); ++i) {
      const Phase& phase = phases[i];
      if (at <= phase.end_step || i + 1 == phases.size()) {
        const bool is_empty = phase.end_step <= start_step;  // pct_start * total_steps == 1
        const double part = is_empty ? 1.0 : (at - start_step) / (phase.end_step - start_step);
        return linear ? anneal_linear(phase.start, phase.end, part) : anneal_cosine(phase.start, phase.end, part);
      }
      start_step = phase.end_step;
    }
    return last;
  });
}

std::shared_ptr<const LRSchedule> warmup_lr(int64_t warmup_steps, std::shared_ptr<const LRSchedule> schedule,
                                            std::optional<double> start_factor) {
  const double start = start_factor.value_or(1.0 / static_cast<double>(warmup_steps + 1));
  TORCH_CHECK_VALUE(schedule != nullptr, "warmup_lr: the schedule must not be null");
  check("warmup_lr",
        Problems().factor(start, "start_factor").require(warmup_steps >= 0, "warmup_steps", ">= 0", warmup_steps));
  return schedule_of([=, schedule = std::move(schedule)](int64_t step) {
    if (step >= warmup_steps) return schedule->factor(step - warmup_steps);
    return anneal_linear(start, 1.0, part_of(step, warmup_steps));
  });
}

const std::vector<std::string>& schedule_names() {
  static const auto& names =
      *new std::vector<std::string>{"constant",   "linear",      "cosine",     "cosine_restarts", "step",
                                    "multi_step", "exponential", "polynomial", "one_cycle"};
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
  const bool has_period = options.name == "step" || options.name == "exponential";
  const bool needs_length = !has_period && options.name != "constant" && options.name != "multi_step";
  const int64_t steps = options.total_steps - options.warmup_steps;
  detail::OptionProblems problems;
  problems.require(options.warmup_steps >= 0, "warmup_steps", ">= 0", options.warmup_steps)
      .require(!needs_length || steps >= (options.name == "one_cycle" ? 2 : 1),
               "total_steps (" + std::to_string(options.total_steps) + ") must exceed warmup_steps (" +
                   std::to_string(options.warmup_steps) + ")")
      .require(options.period_steps >= 0, "period_steps", ">= 0", options.period_steps)
      .require(!has_period || options.period_steps != 0 || steps >= 1,
               options.name + " needs period_steps, or total_steps above warmup_steps");
  if (!problems.empty()) return error("scheduler", problems.text(), options.name, "");
  const auto period = [&](int64_t share) {
    return options.period_steps != 0 ? options.period_steps : std::max<int64_t>(1, steps / share);
  };
  try {
    std::shared_ptr<const LRSchedule> schedule;
    if (options.name == "constant") {
      schedule = constant_lr();
    } else if (options.name == "linear") {
      schedule = linear_lr(steps, 1.0, options.min_factor);
    } else if (options.name == "cosine") {
      schedule = cosine_annealing_lr(steps, options.min_factor);
    } else if (options.name == "cosine_restarts") {
      schedule = cosine_annealing_warm_restarts(period(4), options.period_growth, options.min_factor);
    } else if (options.name == "step") {
      schedule = step_lr(period(3), options.gamma);
    } else if (options.name == "multi_step") {
      schedule = multi_step_lr(options.milestones, options.gamma);
    } else if (options.name == "exponential") {
      schedule = exponential_lr(std::pow(options.gamma, 1.0 / static_cast<double>(period(3))));
    } else if (options.name == "polynomial") {
      schedule = polynomial_lr(steps, options.power, options.min_factor);
    } else {
      schedule = one_cycle_lr({.total_steps = steps});
    }
    return options.warmup_steps == 0 ? schedule : warmup_lr(options.warmup_steps, std::move(schedule));
  } catch (const c10::ValueError& bad) {
    return error("scheduler", bad.what_without_backtrace(), options.name, "");
  }
}

}  // namespace trainkit
