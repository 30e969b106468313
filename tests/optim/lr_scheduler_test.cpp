#include "trainkit/optim/lr_scheduler.h"

#include <limits>

#include "optim/optimizer_parts.h"
#include "state_dict_util.h"
#include "test_util.h"
#include "trainkit/amp/grad_scaler.h"
#include "trainkit/optim/adam.h"
#include "trainkit/optim/sgd.h"

namespace trainkit {
namespace {

/// factor = 1 / (1 + step): a different factor in every step.
class Harmonic : public LRSchedule {
 public:
  double factor(int64_t step) const override { return 1.0 / (1.0 + static_cast<double>(step)); }
};

struct ScheduleProblem {
  explicit ScheduleProblem(bool capturable = false) : optimizer({.lr = 0.5, .capturable = capturable}) {
    optimizer.add_param_group({.params = {{"a", a}}});
    optimizer.add_param_group({.params = {{"b", b}}, .lr_multiple = 2.0});
  }
  void backward() {
    a.mutable_grad() = torch::ones({2});
    b.mutable_grad() = torch::ones({3});
  }
  at::Tensor a = torch::zeros({2}).requires_grad_();
  at::Tensor b = torch::zeros({3}).requires_grad_();
  SGD optimizer;
};

TEST_CASE("LRScheduler sets the factor of the applied steps from the first step, on the host and on the device") {
  const bool capturable = GENERATE(false, true);
  ScheduleProblem p(capturable);
  LRScheduler scheduler(p.optimizer, std::make_shared<Harmonic>());
  double moved = 0;
  for (int step = 0; step < 20; ++step) {
    CHECK(scheduler.lr() == 0.5 / (1 + step));
    CHECK(p.optimizer.group_lrs()[0] == Approx(0.5 / (1 + step)).epsilon(1e-7));
    CHECK(p.optimizer.group_lrs()[1] == Approx(1.0 / (1 + step)).epsilon(1e-7));
    p.backward();
    p.optimizer.step();
    scheduler.step();
    moved += 0.5 / (1 + step);
  }
  CHECK(p.a[0].item<double>() == Approx(-moved));
  CHECK(p.b[0].item<double>() == Approx(-2 * moved));
}

TEST_CASE("A second LRScheduler starts from the rate that the optimizer was made with, at its first step") {
  const bool capturable = GENERATE(false, true);
  ScheduleProblem p(capturable);
  for (int round = 0; round < 3; ++round) {
    LRScheduler scheduler(p.optimizer, std::make_shared<Harmonic>());
    for (int step = 0; step < 4; ++step) {
      CHECK(scheduler.lr() == 0.5 / (1 + step));
      CHECK(p.optimizer.group_lrs()[0] == Approx(0.5 / (1 + step)).epsilon(1e-7));
      p.backward();
      p.optimizer.step();
      scheduler.step();
    }
  }
  CHECK(p.optimizer.initial_lr() == 0.5);
  p.optimizer.set_lr(0.25);  // the user's own: later schedules start from it
  CHECK(LRScheduler(p.optimizer, std::make_shared<Harmonic>()).lr() == 0.25);
}

TEST_CASE("An optimizer state without initial_lr, of an earlier version, loads") {
  ScheduleProblem p;
  StateDict state = p.optimizer.state_dict();
  REQUIRE(state.erase("initial_lr") == 1);
  state["lr"] = 0.125;
  REQUIRE(p.optimizer.load_state_dict(state).ok());
  CHECK(p.optimizer.lr() == 0.125);
  CHECK(p.optimizer.initial_lr() == 0.5);
}

TEST_CASE("A step that the GradScaler skips advances neither the optimizer nor the schedule") {
  const bool capturable = GENERATE(false, true);
  ScheduleProblem p(capturable);
  LRScheduler scheduler(p.optimizer, std::make_shared<Harmonic>());
  GradScaler scaler;
  int64_t applied = 0;
  for (int step = 0; step < 30; ++step) {
    const bool overflow = step % 3 == 1;
    const at::Tensor before = p.a.detach().clone();
    scaler.scale(p.a.sum());
    p.backward();
    if (overflow) p.b.mutable_grad()[1] = std::numeric_limits<float>::infinity();
    scaler.step(p.optimizer);
    scaler.update();
    scheduler.step();
    applied += !overflow;
    CHECK(torch::equal(before, p.a.detach()) == overflow);
    CHECK(p.optimizer.step_count().item<int64_t>() == applied);
    CHECK(p.optimizer.group_lrs()[0] == Approx(0.5 / (1.0 + static_cast<double>(applied))).epsilon(1e-7));
    CHECK(scheduler.lr() == 0.5 / (1.0 + static_cast<double>(applied)));
  }
  CHECK(detail::OptimizerParts::of(p.optimizer).counts.upper_bound() == 30);
}

TEST_CASE("LRScheduler on the device grows its table with the steps, and captured graphs keep its last factor") {
  ScheduleProblem p(/*capturable=*/true);
  LRScheduler scheduler(p.optimizer, std::make_shared<Harmonic>());
  p.backward();
  for (int step = 0; step < 5000; ++step) {
    p.optimizer.step();
    scheduler.step();
  }
  CHECK(p.optimizer.group_lrs()[0] == Approx(0.5 / 5001).epsilon(1e-6));
  // Replays of a CUDA graph advance the count without the host.
  p.optimizer.step_count().fill_(1e6);
  scheduler.step();
  const double beyond = p.optimizer.group_lrs()[0];
  CHECK(beyond < 0.5 / 5001);
  scheduler.reserve(1000001);
  scheduler.step();
  CHECK(p.optimizer.group_lrs()[0] == Approx(0.5 / 1000001).epsilon(1e-6));
  CHECK(beyond > p.optimizer.group_lrs()[0]);
}

TEST_CASE("Learning rates on the device and on the host give the same training to 1e-6") {
  torch::manual_seed(1);
  at::Tensor x = torch::randn({20}).requires_grad_(), y = x.detach().clone().requires_grad_();
  AdamW host({.lr = 0.01}), device({.lr = 0.01, .capturable = true});
  host.add_param_group({.params = {{"x", x}}});
  device.add_param_group({.params = {{"x", y}}});
  const auto schedule = create_schedule({.name = "cosine", .total_steps = 100, .warmup_steps = 10}).value();
  LRScheduler host_scheduler(host, schedule), device_scheduler(device, schedule);
  for (int step = 0; step < 100; ++step) {
    const at::Tensor gradient = torch::randn({20});
    x.mutable_grad() = gradient.clone();
    y.mutable_grad() = gradient.clone();
    host.step();
    device.step();
    host_scheduler.step();
    device_scheduler.step();
  }
  CHECK(torch::allclose(x, y, 1e-6, 1e-6));
}

TEST_CASE("Plateau and schedule combine: the metric lowers the base that the factors multiply") {
  const bool capturable = GENERATE(false, true);
  ScheduleProblem p(capturable);
  LRScheduler scheduler(p.optimizer, std::make_shared<Harmonic>(), PlateauOptions{.factor = 0.5, .patience = 1});
  CHECK_FALSE(scheduler.step_metric(1.0));
  CHECK_FALSE(scheduler.step_metric(1.0));
  CHECK(scheduler.step_metric(1.0));
  CHECK(scheduler.base_lr() == 0.25);
  CHECK(p.optimizer.group_lrs()[0] == 0.25);
  p.backward();
  p.optimizer.step();
  scheduler.step();
  CHECK(p.optimizer.group_lrs()[0] == 0.125);
  CHECK(scheduler.lr() == 0.125);
}

TEST_CASE("A relative threshold counts only a change by that share of the best value as an improvement") {
  const bool maximize = GENERATE(false, true);
  ScheduleProblem p;
  LRScheduler scheduler(p.optimizer, constant_lr(), PlateauOptions{.threshold = 0.1, .maximize = maximize});
  const auto best_after = [&](double metric) {
    scheduler.step_metric(metric);
    return std::get<double>(scheduler.state_dict().at("best"));
  };
  CHECK(best_after(1.0) == 1.0);
  CHECK(best_after(maximize ? 1.05 : 0.95) == 1.0);
  const double better = maximize ? 1.2 : 0.8;
  CHECK(best_after(better) == better);
}

TEST_CASE("LRScheduler: a state saved in the middle gives the same bits, loaded before or after the optimizer's") {
  const bool capturable = GENERATE(false, true);
  const int middle = GENERATE(28, 35);  // in the cooldown; after a bad value
  const PlateauOptions plateau{.factor = 0.5, .patience = 2, .cooldown = 1};
  const auto schedule = create_schedule({.name = "cosine", .total_steps = 60, .warmup_steps = 5}).value();
  const auto train = [](ScheduleProblem& p, LRScheduler& scheduler, int from, int to) {
    for (int step = from; step < to; ++step) {
      p.backward();
      p.optimizer.step();
      scheduler.step();
      if (step % 3 == 0) scheduler.step_metric(step < 20 ? 1.0 / (1 + step) : 5.0);
    }
  };
  ScheduleProblem whole(capturable), first(capturable), second(capturable);
  LRScheduler whole_scheduler(whole.optimizer, schedule, plateau);
  train(whole, whole_scheduler, 0, 50);
  LRScheduler first_scheduler(first.optimizer, schedule, plateau);
  train(first, first_scheduler, 0, middle);
  LRScheduler second_scheduler(second.optimizer, schedule, plateau);
  {
    const at::NoGradGuard no_grad;
    second.a.copy_(first.a);
    second.b.copy_(first.b);
  }
  REQUIRE(second.optimizer.load_state_dict(first.optimizer.state_dict()).ok());
  REQUIRE(second_scheduler.load_state_dict(first_scheduler.state_dict()).ok());
  CHECK(second.optimizer.group_lrs() == first.optimizer.group_lrs());
  train(second, second_scheduler, middle, 50);
  CHECK(whole_scheduler.base_lr() < 0.5);
  CHECK(torch::equal(second.a, whole.a));
  CHECK(torch::equal(second.b, whole.b));
  CHECK(test::same_state(second_scheduler.state_dict(), whole_scheduler.state_dict()));
  CHECK(test::same_state(second.optimizer.state_dict(), whole.optimizer.state_dict()));
}

TEST_CASE("LRScheduler refuses an invalid state and stays unchanged") {
  ScheduleProblem p;
  LRScheduler scheduler(p.optimizer, std::make_shared<Harmonic>(), PlateauOptions{});
  scheduler.step_metric(3.0);
  const StateDict good = scheduler.state_dict();
  const std::vector<std::pair<std::string, std::optional<StateValue>>> changes = {
      {"base_lr", std::nullopt},
      {"base_lr", StateValue(-1.0)},
      {"base_lr", StateValue(std::nan(""))},
      {"base_lr", StateValue(int64_t{1})},
      {"best", std::nullopt},
      {"best", StateValue(std::nan(""))},
      {"num_bad_epochs", StateValue(int64_t{-1})},
      {"cooldown_counter", StateValue(int64_t{-1})},
      {"cooldown_counter", std::nullopt}};
  for (const auto& [name, value] : changes) {
    StateDict bad = good;
    bad["base_lr"] = 9.0;  // to detect a partial load
    bad.erase(name);
    if (value) bad.emplace(name, *value);
    const absl::Status status = scheduler.load_state_dict(bad);
    CAPTURE(name, status.message());
    CHECK(exit_code(status) == ExitCode::kWeights);
    CHECK(test::same_state(scheduler.state_dict(), good));
    CHECK(p.optimizer.lr() == 0.5);
  }
}

TEST_CASE("LRScheduler reports every option out of range and every missing one") {
  using Catch::Contains;
  ScheduleProblem p;
  CHECK_THROWS_AS(LRScheduler(p.optimizer, nullptr), c10::ValueError);
  const PlateauOptions bad{.factor = 1, .patience = -1, .threshold = -1, .cooldown = -1, .min_lr = -1, .eps = -1};
  for (const char* name : {"factor", "patience", "threshold", "cooldown", "min_lr", "eps"}) {
    CHECK_THROWS_WITH(LRScheduler(p.optimizer, constant_lr(), bad), Contains(name));
  }
  LRScheduler scheduler(p.optimizer, constant_lr());
  CHECK_THROWS_WITH(scheduler.step_metric(1.0), Contains("needs PlateauOptions"));
}

}  // namespace
}  // namespace trainkit
