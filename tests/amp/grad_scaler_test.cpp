#include "trainkit/amp/grad_scaler.h"

#include "test_util.h"
#include "trainkit/optim/adam.h"
#include "trainkit/optim/clip_grad.h"

namespace trainkit {
namespace {

/// One parameter of two elements, its optimizer, and losses whose gradient is `gradient`.
struct Problem {
  explicit Problem(GradScalerOptions options = {}) : scaler(options), optimizer({.lr = 0.1}) {
    optimizer.add_param_group({.params = {{"w", weight}}});
  }
  void backward(double gradient = 1.0) { scaler.scale((weight * gradient).sum()).backward(); }

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
}

TEST_CASE("GradScaler halves the scale and skips the step after a gradient that is not finite") {
  Problem p;
  const at::Tensor before = p.weight.detach().clone();
  p.backward(std::numeric_limits<double>::infinity());
  p.scaler.step(p.optimizer);
  p.scaler.update();
  CHECK(torch::equal(p.weight.detach(), before));
  CHECK(p.optimizer.step_count().item<double>() == 0);
  CHECK(p.scaler.get_scale().item<double>() == 32768);
}

TEST_CASE("GradScaler: every wrong order is an error that names the call") {
  Problem p;
  using Catch::Matchers::Contains;
  CHECK_THROWS_WITH(p.scaler.unscale_(p.optimizer), Contains("unscale_() is called before scale()"));
  CHECK_THROWS_WITH(p.scaler.step(p.optimizer), Contains("step() is called before scale()"));
  CHECK_THROWS_WITH(p.scaler.update(), Contains("update() is called before scale()"));
  p.backward();
  CHECK_THROWS_WITH(p.scaler.update(), Contains("update() is called before step()"));
  p.scaler.unscale_(p.optimizer);
  CHECK_THROWS_WITH(p.scaler.unscale_(p.optimizer), Contains("unscale_() has already been called"));
  CHECK_THROWS_WITH(p.scaler.update(), Contains("between unscale_() and step()"));
  CHECK_THROWS_WITH(p.optimizer.step(), Contains("call scaler.step(optimizer) instead"));
  p.scaler.step(p.optimizer);
  CHECK_THROWS_WITH(p.scaler.step(p.optimizer), Contains("step() has already been called"));
  CHECK_THROWS_WITH(p.scaler.unscale_(p.optimizer), Contains("unscale_() is called after step()"));
  p.scaler.update();
  p.backward();
  CHECK_THROWS_WITH(clip_grad_norm_(p.optimizer, 1.0), Contains("call scaler.unscale_(optimizer) before it"));
}

TEST_CASE("GradScaler: clipping before the first unscale_ is an error at the scaler's next call") {
  using Catch::Matchers::Contains;
  Problem p;
  p.backward();
  clip_grad_norm_(p.optimizer, 1.0);
  CHECK_THROWS_WITH(p.scaler.step(p.optimizer), Contains("clip_grad_norm_ was called on scaled gradients"));
}

}  // namespace
}  // namespace trainkit
