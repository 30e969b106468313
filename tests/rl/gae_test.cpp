#include "trainkit/rl/gae.h"

#include <torch/torch.h>

#include "rl/advantage_scan.h"
#include "test_util.h"

namespace trainkit {
namespace {

/// Column 0 continues, column 1 terminates after step 1, column 2 is truncated after step 1.
GaeInput steps() {
  const at::Tensor none = torch::zeros({3, 3}, torch::kBool);
  GaeInput steps = {torch::tensor({{1., 1., 1.}, {2., 2., 2.}, {3., 3., 3.}}),
                    torch::tensor({{1., 1., 1.}, {2., 2., 2.}, {4., 4., 4.}}),
                    torch::tensor({{2., 2., 2.}, {4., 4., 6.}, {8., 8., 8.}}), none.clone(), none.clone()};
  steps.terminated[1][1] = true;
  steps.truncated[1][2] = true;
  return steps;
}

/// The definition, step by step in double precision.
at::Tensor reference(const GaeInput& steps, const GaeOptions& options) {
  at::Tensor advantage = torch::zeros_like(steps.reward);
  for (int64_t i = 0; i < advantage.size(1); ++i) {
    double later = 0;
    for (int64_t t = advantage.size(0) - 1; t >= 0; --t) {
      const bool terminated = steps.terminated[t][i].item<bool>(), truncated = steps.truncated[t][i].item<bool>();
      const double next = terminated ? 0 : steps.next_value[t][i].item<double>();
      const double delta = steps.reward[t][i].item<double>() + options.gamma * next - steps.value[t][i].item<double>();
      later = delta + (terminated || truncated ? 0 : options.gamma * options.lambda * later);
      advantage[t][i] = later;
    }
  }
  return advantage;
}

GaeInput random_steps(int64_t horizon, int64_t simulators) {
  const auto real = [&] { return torch::randn({horizon, simulators}, torch::kDouble); };
  const auto flags = [&] { return torch::rand({horizon, simulators}) < 0.1; };
  GaeInput steps = {real(), real(), real(), flags(), flags()};
  steps.next_value.masked_fill_(steps.terminated, std::nan(""));  // not read there
  return steps;
}

}  // namespace

TEST_CASE("Advantages and returns are those computed by hand", "[rl][gae]") {
  // gamma = lambda = 1/2. delta_2 = 3 + 8/2 - 4 = 3 everywhere.
  // Continues:  delta_1 = 2 + 4/2 - 2 = 2, A_1 = 2 + 3/4 = 2.75;  delta_0 = 1 + 2/2 - 1 = 1, A_0 = 1 + 2.75/4 = 1.6875
  // Terminated: delta_1 = 2 - 2 = 0,       A_1 = 0;                                          A_0 = 1
  // Truncated:  delta_1 = 2 + 6/2 - 2 = 3, A_1 = 3;                                          A_0 = 1.75
  const GaeResult result = gae(steps(), {.gamma = 0.5, .lambda = 0.5});
  const at::Tensor advantage = torch::tensor({{1.6875, 1., 1.75}, {2.75, 0., 3.}, {3., 3., 3.}});
  CHECK(at::equal(result.advantage, advantage));
  CHECK(at::equal(result.returns, advantage + steps().value));
}

TEST_CASE("With lambda 1 and no discount a return is the sum of rewards to the end of the episode", "[rl][gae]") {
  const GaeResult result = gae(steps(), {.gamma = 1, .lambda = 1});
  CHECK(at::equal(result.returns.select(1, 0), torch::tensor({14., 13., 11.})));
  CHECK(at::equal(result.returns.select(1, 1), torch::tensor({3., 2., 11.})));
  CHECK(at::equal(result.returns.select(1, 2), torch::tensor({9., 8., 11.})));
}

TEST_CASE("The loop of the CPU and the scan of devices agree with the definition", "[rl][gae]") {
  torch::manual_seed(1);
  const auto [horizon, simulators] = GENERATE(std::pair(1, 1), std::pair(7, 3), std::pair(33, 130));
  const GaeInput steps = random_steps(horizon, simulators);
  const GaeOptions options = {.gamma = 0.99, .lambda = 0.95};
  const at::Tensor expected = reference(steps, options);
  CHECK(at::allclose(gae(steps, options).advantage, expected, 1e-12, 1e-12));
  CHECK(at::allclose(detail::scan_advantages(steps, options), expected, 1e-12, 1e-12));
}

TEST_CASE("Tensors that do not fit, and factors out of range, are named", "[rl][gae]") {
  using Catch::Contains;
  GaeInput wrong = steps();
  wrong.truncated = torch::zeros({3, 2}, torch::kBool);
  CHECK_THROWS_WITH(gae(wrong), Contains("truncated must have the shape of reward"));
  wrong = steps();
  wrong.value = wrong.value.to(torch::kDouble);
  CHECK_THROWS_WITH(gae(wrong), Contains("value must be Float"));
  CHECK_THROWS_WITH(gae(steps(), {.gamma = 1.5}), Contains("gamma must be in [0, 1]"));
}

}  // namespace trainkit
