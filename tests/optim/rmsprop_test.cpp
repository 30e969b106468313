// RMSprop.
#include "trainkit/optim/rmsprop.h"

#include <torch/torch.h>

#include "optimizer_steps.h"
#include "test_util.h"

namespace trainkit {
namespace {

using Catch::Contains;
using namespace test;

TEST_CASE("RMSprop of every dtype equals that of float64 within rounding, for any number of threads") {
  for (const RMSpropOptions& options : kRMSpropOptions) {
    const auto exact = run_steps<RMSprop>(options, at::kDouble, at::kCPU);
    check_equal(run_steps<RMSprop>(options, at::kFloat, at::kCPU), exact, 1e-4);
    check_equal(run_steps<RMSprop>(options, at::kBFloat16, at::kCPU), exact, 0.2);
    const auto some = run_steps<RMSprop>(options, at::kFloat, at::kCPU);
    const int threads = at::get_num_threads();
    at::set_num_threads(3);
    check_equal(run_steps<RMSprop>(options, at::kFloat, at::kCPU), some, 1e-300);
    at::set_num_threads(threads);
  }
}

TEST_CASE("A centered variance that rounds below 0 counts as 0") {
  at::Tensor weight = torch::zeros({64}).requires_grad_();
  RMSprop optimizer({.lr = 0.01, .alpha = 0.5, .centered = true});
  optimizer.add_param_group({.params = {{"weight", weight}}});
  for (int step = 0; step < 60; ++step) {
    weight.mutable_grad() = torch::linspace(0.1, 3, 64);
    optimizer.step();
  }
  CHECK(weight.isfinite().all().item<bool>());
  weight.mutable_grad() = torch::full({64}, NAN);
  optimizer.step();
  CHECK(weight.isnan().all().item<bool>());
}

TEST_CASE("RMSprop refuses options out of range, and a state of other tensors") {
  CHECK_THROWS_WITH(RMSprop({.alpha = 1.5, .eps = -1, .momentum = 1}),
                    Contains("alpha") && Contains("eps") && Contains("momentum"));
  at::Tensor weight = torch::ones({2}).requires_grad_();
  RMSprop with({.momentum = 0.9}), without;
  for (RMSprop* optimizer : {&with, &without}) optimizer->add_param_group({.params = {{"weight", weight}}});
  CHECK(!without.load_state_dict(with.state_dict()).ok());
}

}  // namespace
}  // namespace trainkit
