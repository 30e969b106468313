// Target networks: averages and copies of a network.
#include "trainkit/nn/target_network.h"

#include "state_dict_util.h"
#include "test_util.h"
#include "trainkit/core/error.h"

using namespace trainkit;

namespace {

torch::nn::Sequential net(int64_t out = 3) {
  return torch::nn::Sequential(torch::nn::Linear(4, 5), torch::nn::BatchNorm1d(5), torch::nn::Linear(5, out));
}

/// Changes all parameters and buffers, as a step of training.
void train(torch::nn::Sequential& online) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : online->parameters()) parameter.add_(torch::randn_like(parameter));
  online->forward(torch::randn({8, 4}));
}

}  // namespace

TEST_CASE("A target network is the average of torch.optim.swa_utils, with the network's buffers", "[nn][target]") {
  for (const double tau : {0.005, 0.3, 0.7}) {
    CAPTURE(tau);
    torch::manual_seed(1);
    torch::nn::Sequential online = net();
    TargetNetwork target(*online, net().ptr(), {.tau = tau});
    std::vector<at::Tensor> expected;
    for (const at::Tensor& parameter : online->parameters()) expected.push_back(parameter.detach().clone());
    for (int step = 0; step < 5; ++step) {
      train(online);
      target.update();
      for (size_t i = 0; i < expected.size(); ++i) {
        // get_ema_multi_avg_fn(decay) lerps by 1 - decay.
        expected[i].lerp_(online->parameters()[i].detach(), tau);
        const at::Tensor own = target.module().parameters()[i];
        CHECK(own.equal(expected[i]));
        CHECK(!own.requires_grad());
      }
      for (const auto& buffer : online->named_buffers()) {
        CHECK(target.module().named_buffers()[buffer.key()].equal(buffer.value()));
      }
    }
    const at::Tensor formula = expected[0] * (1 - tau) + online->parameters()[0].detach() * tau;
    target.update();
    CHECK(torch::allclose(target.module().parameters()[0], formula, 1e-6, 1e-7));
  }
}

TEST_CASE("A target network copies the network every n calls", "[nn][target]") {
  torch::manual_seed(2);
  torch::nn::Sequential online = net();
  TargetNetwork target(*online, net().ptr(), {.tau = 1, .every = 3});
  at::Tensor copied = online->parameters()[0].detach().clone();
  for (int step = 1; step <= 7; ++step) {
    train(online);
    target.update();
    if (step % 3 == 0) copied = online->parameters()[0].detach().clone();
    CHECK(target.module().parameters()[0].equal(copied));
  }
}

TEST_CASE("A target network resumes from its state with the same bits", "[nn][target]") {
  torch::manual_seed(3);
  torch::nn::Sequential online = net();
  TargetNetwork whole(*online, net().ptr(), {.tau = 0.1, .every = 2});
  for (int step = 0; step < 3; ++step) train(online), whole.update();
  const StateDict saved = test::clone_state(whole.state_dict());
  TargetNetwork resumed(*online, net().ptr(), {.tau = 0.1, .every = 2});
  REQUIRE(resumed.load_state_dict(saved).ok());
  for (int step = 0; step < 3; ++step) train(online), whole.update(), resumed.update();
  CHECK(test::same_state(whole.state_dict(), resumed.state_dict()));
  // A state that does not fit changes nothing.
  StateDict bad = saved;
  bad["target.0.weight"] = torch::zeros({1});
  const StateDict before = test::clone_state(resumed.state_dict());
  CHECK(exit_code(resumed.load_state_dict(bad)) == ExitCode::kWeights);
  bad.erase("target.0.weight");
  CHECK(exit_code(resumed.load_state_dict(bad)) == ExitCode::kWeights);
  CHECK(test::same_state(before, resumed.state_dict()));
}

TEST_CASE("A target network refuses a module of another kind, the network itself and options out of range",
          "[nn][target]") {
  torch::nn::Sequential online = net();
  CHECK_THROWS_AS(TargetNetwork(*online, net(2).ptr()), c10::ValueError);
  CHECK_THROWS_WITH(TargetNetwork(*online, online.ptr()), Catch::Contains("shares '0.weight'"));
  CHECK_THROWS_WITH(TargetNetwork(*online, net().ptr(), {.tau = 0}), Catch::Contains("tau"));
  CHECK_THROWS_WITH(TargetNetwork(*online, net().ptr(), {.every = 0}), Catch::Contains("every"));
}
