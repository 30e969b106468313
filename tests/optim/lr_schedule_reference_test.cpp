#include <map>

#include "reference_util.h"
#include "trainkit/optim/lr_scheduler.h"
#include "trainkit/optim/sgd.h"

namespace trainkit {
namespace {

std::shared_ptr<const LRSchedule> warm(std::shared_ptr<const LRSchedule> schedule) {
  return warmup_lr(25, std::move(schedule), 0.2);
}

/// The cases of tests/reference/lr_schedules.py.
std::map<std::string, std::shared_ptr<const LRSchedule>> schedules() {
  std::map<std::string, std::shared_ptr<const LRSchedule>> all;
  all["constant"] = constant_lr();
  all["linear"] = linear_lr(60, 1.0, 0.1);
  all["cosine"] = cosine_annealing_lr(80, 0.1);
  all["restarts"] = cosine_annealing_warm_restarts(20, 1, 0.05);
  all["restarts_mult"] = cosine_annealing_warm_restarts(10, 2);
  all["step"] = step_lr(15, 0.3);
  all["multi_step"] = multi_step_lr({5, 30, 30, 70}, 0.4);
  all["exponential"] = exponential_lr(0.97);
  all["polynomial"] = polynomial_lr(60, 1.7);
  for (const char* name : {"constant", "linear", "cosine", "restarts", "restarts_mult", "step", "multi_step",
                           "exponential", "polynomial"}) {
    all[std::string(name) + "_warm"] = warm(all[name]);
  }
  all["one_cycle"] = one_cycle_lr({.total_steps = 100});
  all["one_cycle_linear"] =
      one_cycle_lr({.total_steps = 100, .pct_start = 0.25, .div_factor = 10, .final_div_factor = 50, .linear = true});
  all["one_cycle_three"] = one_cycle_lr({.total_steps = 100, .three_phase = true});
  all["nanogpt"] =
      create_schedule({.name = "cosine", .total_steps = 120, .warmup_steps = 20, .min_factor = 0.1}).value();
  return all;
}

std::map<std::string, PlateauOptions> plateaus() {
  return {
      {"plateau", {.factor = 0.5, .patience = 3}},
      {"plateau_cooldown", {.factor = 0.3, .patience = 2, .cooldown = 4, .min_lr = 0.01}},
      {"plateau_abs", {.factor = 0.5, .patience = 2, .threshold = 0.05, .relative_threshold = false}},
      {"plateau_max", {.factor = 0.5, .patience = 4, .threshold = 0.02, .maximize = true}},
      {"plateau_max_abs",
       {.factor = 0.9, .patience = 1, .threshold = 0.01, .relative_threshold = false, .eps = 1e-2, .maximize = true}}};
}

struct Point {
  int64_t step;
  double lr;
  double metric;
};

/// Python's learning rates by case, computed once.
const std::map<std::string, std::vector<Point>>& python_traces() {
  static std::map<std::string, std::vector<Point>> traces;
  if (!traces.empty()) return traces;
  for (const auto& row : test::parse_csv(test::run_reference("lr_schedules.py"))) {
    traces[row.at(0)].push_back({std::stoll(row.at(1)), std::stod(row.at(2)), std::stod(row.at(3))});
  }
  return traces;
}

TEST_CASE("Every schedule, with and without warm-up, equals Python's at every step to 1e-9") {
  if (test::python().empty()) TRAINKIT_SKIP("TRAINKIT_PYTHON is not set");
  const auto& traces = python_traces();
  for (const auto& [name, schedule] : schedules()) {
    CAPTURE(name);
    const auto& trace = traces.at(name);
    REQUIRE(trace.size() >= 50);
    for (const Point& point : trace) {
      CAPTURE(point.step);
      CHECK(std::abs(schedule->factor(point.step) - point.lr) < 1e-9);
    }
  }
}

TEST_CASE("PlateauOptions equal Python's ReduceLROnPlateau at every metric to 1e-9") {
  if (test::python().empty()) TRAINKIT_SKIP("TRAINKIT_PYTHON is not set");
  const auto& traces = python_traces();
  for (const auto& [name, options] : plateaus()) {
    CAPTURE(name);
    SGD optimizer({.lr = 0.5});
    optimizer.add_param_group({.params = {{"x", torch::zeros({1}).requires_grad_()}}});
    LRScheduler scheduler(optimizer, constant_lr(), options);
    int lowered = 0;
    REQUIRE(traces.at(name).size() == 120);
    for (const Point& point : traces.at(name)) {
      CAPTURE(point.step);
      lowered += scheduler.step_metric(point.step == 30 ? std::nan("") : point.metric);
      CHECK(std::abs(optimizer.lr() - point.lr) < 1e-9);
      CHECK(optimizer.lr() == scheduler.lr());
    }
    CHECK(lowered >= 2);
  }
}

}  // namespace
}  // namespace trainkit
