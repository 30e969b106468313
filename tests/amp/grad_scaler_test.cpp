#include "trainkit/amp/grad_scaler.h"

#include <limits>

#include "state_dict_util.h"
#include "test_util.h"
#include "trainkit/optim/adam.h"
#include "trainkit/optim/optimizer.h"
#include "trainkit/optim/sgd.h"

namespace trainkit {
namespace {

using Catch::Contains;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// One parameter of two elements, its optimizer, and losses whose gradient is `gradient`.
struct Problem {
  explicit Problem(GradScalerOptions options = {}) : scaler(options), optimizer({.lr = 0.1}) {
    optimizer.add_param_group({.params = {{"w", weight}}});
  }
  void backward(double gradient = 1.0) {
    weight.mutable_grad().reset();
    scaler.scale((weight * gradient).sum()).backward();
  }
  void iterate(double gradient) {
    backward(gradient);
    scaler.step(optimizer);
    scaler.update();
  }
  double scale() const { return scaler.get_scale().item<double>(); }

  at::Tensor weight = torch::ones({2}).requires_grad_();
  GradScaler scaler;
  AdamW optimizer;
};

TEST_CASE("GradScaler unscales to the true gradients") {
  Problem p;
  p.backward(3.0);
  CHECK(p.weight.grad()[0].item<double>() == 3.0 * 65536);
  p.scaler.unscale_(p.optimizer);
  CHECK(p.weight.grad()[0].item<double>() == 3.0);
  CHECK(p.scaler.found_inf(p.optimizer).item<double>() == 0);
}

TEST_CASE("GradScaler halves the scale and skips the step after a non-finite gradient") {
  for (const double bad : {kInfinity, -kInfinity, std::numeric_limits<double>::quiet_NaN()}) {
    Problem p;
    p.iterate(1.0);
    const at::Tensor before = p.weight.detach().clone();
    const StateDict state_before = p.optimizer.state_dict();
    const at::Tensor mean_before = std::get<at::Tensor>(state_before.at("state.w.exp_avg")).clone();
    p.iterate(bad);
    CHECK(torch::equal(p.weight.detach(), before));
    CHECK(torch::equal(std::get<at::Tensor>(p.optimizer.state_dict().at("state.w.exp_avg")), mean_before));
    CHECK(p.optimizer.step_count().item<double>() == 1);
    CHECK(p.scale() == 32768);
    p.iterate(1.0);
    CHECK_FALSE(torch::equal(p.weight.detach(), before));
    CHECK(p.optimizer.step_count().item<double>() == 2);
  }
}

TEST_CASE("GradScaler keeps the scale between its minimum and maximum") {
  Problem low({.init_scale = 8.0});
  for (int i = 0; i < 10; ++i) low.iterate(kInfinity);
  CHECK(low.scale() == 1.0);
  low.iterate(2.0);
  CHECK(low.optimizer.step_count().item<double>() == 1);  // and training continues

  Problem high({.init_scale = 8.0, .growth_interval = 1, .max_scale = 100.0});
  for (int i = 0; i < 10; ++i) high.iterate(1.0);
  CHECK(high.scale() == 100.0);

  low.backward();
  low.scaler.step(low.optimizer);
  low.scaler.update(0.25);
  CHECK(low.scale() == 1.0);  // a scale that the caller sets is limited too
}

TEST_CASE("GradScaler detects an inf that results from unscaling by a tiny scale") {
  // 3e38 is finite; divided by a scale of 2^-10 it is not. torch.amp.GradScaler does not detect this.
  Problem p({.init_scale = 0x1p-10, .min_scale = 0.0});
  const at::Tensor before = p.weight.detach().clone();
  p.scaler.scale(p.weight.sum());
  p.weight.mutable_grad() = torch::full({2}, 3e38);
  p.scaler.unscale_(p.optimizer);
  REQUIRE(std::isinf(p.weight.grad()[0].item<double>()));
  CHECK(p.scaler.found_inf(p.optimizer).item<double>() == 1);
  p.scaler.step(p.optimizer);
  CHECK(torch::equal(p.weight.detach(), before));
}

TEST_CASE("GradScaler: a call in the wrong order is an error that names the call, and changes nothing") {
  Problem p;
  CHECK_THROWS_WITH(p.scaler.unscale_(p.optimizer), Contains("unscale_() is called before scale()"));
  CHECK_THROWS_WITH(p.scaler.step(p.optimizer), Contains("step() is called before scale()"));
  CHECK_THROWS_WITH(p.scaler.update(), Contains("update() is called before scale()"));
  CHECK_THROWS_WITH(p.scaler.found_inf(p.optimizer), Contains("found_inf() is called before unscale_()"));
  p.backward();
  CHECK_THROWS_WITH(p.scaler.update(), Contains("update() is called before step()"));
  p.scaler.unscale_(p.optimizer);
  CHECK_THROWS_WITH(p.scaler.unscale_(p.optimizer), Contains("unscale_() has already been called"));
  CHECK(p.weight.grad()[0].item<double>() == 1.0);
  CHECK_THROWS_WITH(p.scaler.update(), Contains("between unscale_() and step()"));
  CHECK_THROWS_WITH(p.optimizer.step(), Contains("call scaler.step(optimizer) instead"));
  CHECK(p.weight[0].item<double>() == 1.0);
  p.scaler.step(p.optimizer);
  CHECK_THROWS_WITH(p.scaler.step(p.optimizer), Contains("step() has already been called"));
  CHECK_THROWS_WITH(p.scaler.unscale_(p.optimizer), Contains("unscale_() is called after step()"));
  p.scaler.update();
  CHECK(p.scale() == 65536);
  CHECK_THROWS_WITH(p.scaler.step(p.optimizer), Contains("step() is called before scale()"));
  p.backward();
  CHECK_THROWS_WITH(clip_grad_norm_(p.optimizer, 1.0), Contains("call scaler.unscale_(optimizer) before it"));
  CHECK(p.weight.grad()[0].item<double>() == 65536);
  CHECK(p.optimizer.step_count().item<double>() == 1);
}

TEST_CASE("GradScaler: clipping before the first unscale_ is an error at the next call of the scaler") {
  Problem p;
  p.backward();
  clip_grad_norm_(p.optimizer, 1.0);  // the optimizer has not been used with the scaler yet
  CHECK_THROWS_WITH(p.scaler.unscale_(p.optimizer), Contains("clip_grad_norm_ was called on scaled gradients"));
  CHECK_THROWS_WITH(p.scaler.step(p.optimizer), Contains("clip_grad_norm_ was called on scaled gradients"));
  CHECK(p.weight[0].item<double>() == 1.0);
}

TEST_CASE(
    "An optimizer that clipped and stepped without a GradScaler can be used with one afterwards, and the reverse") {
  Problem p;
  p.weight.sum().backward();
  clip_grad_norm_(p.optimizer, 1.0);
  p.optimizer.step();
  p.iterate(1.0);
  CHECK(p.optimizer.step_count().item<double>() == 2);
  p.weight.mutable_grad() = torch::ones({2});
  clip_grad_norm_(p.optimizer, 1.0);
  p.optimizer.step();
  CHECK(p.optimizer.step_count().item<double>() == 3);
  {
    GradScaler gone;
    gone.scale(p.weight.sum()).backward();
    gone.unscale_(p.optimizer);
  }
  p.optimizer.step();  // the scaler has been destroyed
  CHECK(p.optimizer.step_count().item<double>() == 4);
}

TEST_CASE("GradScaler: abandon() discards an iteration that will be retried") {
  Problem p;
  p.backward(kInfinity);
  p.scaler.unscale_(p.optimizer);
  p.scaler.abandon();
  CHECK(p.scale() == 65536);
  p.iterate(1.0);
  CHECK(p.optimizer.step_count().item<double>() == 1);
  CHECK(p.scale() == 65536);
}

TEST_CASE("Two optimizers share a GradScaler: one overflow lowers the scale and skips that optimizer only") {
  const bool first_overflows = GENERATE(true, false);
  Problem p;
  at::Tensor other = torch::ones({3}).requires_grad_();
  SGD second({.lr = 0.5});
  second.add_param_group({.params = {{"other", other}}});
  p.backward(first_overflows ? kInfinity : 1.0);
  p.scaler.scale((other * (first_overflows ? 1.0 : kInfinity)).sum()).backward();
  p.scaler.step(p.optimizer);
  p.scaler.step(second);
  p.scaler.update();
  CHECK((p.weight[0].item<double>() == 1.0) == first_overflows);
  CHECK(other[0].item<double>() == (first_overflows ? 0.5 : 1.0));
  CHECK(p.scale() == 32768);
}

TEST_CASE("found_inf can be set before the step, as ranks that agree on it do") {
  Problem p;
  p.backward();
  p.scaler.unscale_(p.optimizer);
  p.scaler.found_inf(p.optimizer).fill_(1);
  p.scaler.step(p.optimizer);
  p.scaler.update();
  CHECK(p.weight[0].item<double>() == 1.0);
  CHECK(p.scale() == 32768);
}

TEST_CASE("A disabled GradScaler passes everything through") {
  Problem p({.init_scale = -1, .enabled = false});  // its options are not checked
  const at::Tensor loss = p.weight.sum();
  CHECK(p.scaler.scale(loss).is_same(loss));
  loss.backward();
  clip_grad_norm_(p.optimizer, 1.0);
  p.scaler.step(p.optimizer);
  p.scaler.update();
  CHECK(p.optimizer.step_count().item<double>() == 1);
  CHECK(p.scale() == 1.0);
  CHECK(p.scaler.state_dict().empty());
  CHECK(p.scaler.load_state_dict({{"scale", 4.0}}).ok());
}

TEST_CASE("GradScaler refuses float16 gradients and an optimizer without gradients") {
  at::Tensor half = torch::ones({2}, at::kHalf).requires_grad_();
  SGD optimizer({.lr = 0.1});
  optimizer.add_param_group({.params = {{"half", half}}});
  GradScaler scaler;
  scaler.scale(torch::ones({}));
  CHECK_THROWS_WITH(scaler.unscale_(optimizer), Contains("no parameter of this optimizer has a gradient"));
  half.mutable_grad() = torch::ones({2}, at::kHalf);
  CHECK_THROWS_AS(scaler.unscale_(optimizer), c10::ValueError);
}

TEST_CASE("GradScaler reports every invalid option at once") {
  const auto make = [] {
    return GradScaler({.init_scale = 0,
                       .growth_factor = 1,
                       .backoff_factor = 1,
                       .growth_interval = 0,
                       .min_scale = -1,
                       .max_scale = -2});
  };
  CHECK_THROWS_AS(make(), c10::ValueError);
  for (const char* name :
       {"init_scale", "growth_factor", "backoff_factor", "growth_interval", "min_scale", "max_scale"}) {
    CHECK_THROWS_WITH(make(), Contains(name));
  }
}

TEST_CASE("GradScaler: a state saved in the middle and loaded before or after the first scale() gives the same bits") {
  const bool warm = GENERATE(false, true);
  const auto gradient = [](int step) { return step % 11 == 3 ? kInfinity : 1.0 + step; };
  Problem whole({.init_scale = 512, .growth_interval = 4});
  Problem first({.init_scale = 512, .growth_interval = 4});
  // Step 14 overflows, and the steps until 17 are counted towards the next growth.
  for (int step = 0; step < 17; ++step) first.iterate(gradient(step)), whole.iterate(gradient(step));
  Problem second;
  if (warm) second.iterate(2.0);
  const StateDict saved = first.scaler.state_dict();
  for (const char* name : {"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"}) {
    CHECK(saved.contains(name));
  }
  CHECK(saved.size() == 5);
  REQUIRE(second.scaler.load_state_dict(saved).ok());
  CHECK(test::same_state(second.scaler.state_dict(), saved));
  for (int step = 17; step < 30; ++step) {
    second.iterate(gradient(step));
    whole.iterate(gradient(step));
    CHECK(test::same_state(second.scaler.state_dict(), whole.scaler.state_dict()));
  }
}

TEST_CASE("GradScaler refuses an invalid state and stays unchanged") {
  GradScaler scaler({.init_scale = 16});
  const StateDict good = scaler.state_dict();
  const std::vector<std::pair<std::string, std::optional<StateValue>>> changes = {
      {"scale", std::nullopt},
      {"scale", StateValue(0.0)},
      {"scale", StateValue(0.5)},  // below the floor
      {"scale", StateValue(kInfinity)},
      {"scale", StateValue(int64_t{4})},
      {"growth_factor", StateValue(1.0)},
      {"backoff_factor", StateValue(1.5)},
      {"growth_interval", StateValue(int64_t{0})},
      {"_growth_tracker", StateValue(int64_t{-1})},
      {"_growth_tracker", StateValue(int64_t{2000})},
      {"_growth_tracker", std::nullopt}};
  for (const auto& [name, value] : changes) {
    StateDict bad = good;
    bad.erase(name);
    if (value) bad.emplace(name, *value);
    const absl::Status status = scaler.load_state_dict(bad);
    CAPTURE(name, status.message());
    CHECK(exit_code(status) == ExitCode::kWeights);
    CHECK(test::same_state(scaler.state_dict(), good));
  }
  CHECK(exit_code(scaler.load_state_dict({})) == ExitCode::kWeights);  // of a disabled scaler
}

}  // namespace
}  // namespace trainkit
