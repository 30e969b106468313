#pragma once
/// A pole on a cart and an agent that balances it, for ppo.cpp.

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <optional>
#include <vector>

#include "trainkit/core/status.h"
#include "trainkit/rl/distributions.h"
#include "trainkit/rl/simulator_pool.h"

/// A pole on a cart that is pushed to the left or to the right. Equations: Barto, Sutton, Anderson 1983, "Neuronlike
/// adaptive elements that can solve difficult learning control problems", without friction. Constants, Euler's method
/// and limits are those of gymnasium's CartPole-v1.
class CartPole final : public trainkit::Simulator {
 public:
  void reset(trainkit::RandomStream& random, const trainkit::BatchView& observation) override {
    for (double& number : state_) number = 0.1 * random.uniform() - 0.05;
    steps_ = 0;
    show(observation);
  }
  trainkit::SimulatorStep step(const std::byte* action, trainkit::RandomStream& /*random*/,
                               const trainkit::BatchView& observation) override {
    constexpr double kGravity = 9.8, kCart = 1.0, kPole = 0.1, kHalfLength = 0.5, kForce = 10.0, kSeconds = 0.02;
    auto& [x, speed, angle, turn] = state_;
    const double force = *reinterpret_cast<const int64_t*>(action) == 1 ? kForce : -kForce;
    const double cosine = std::cos(angle), sine = std::sin(angle);
    const double push = (force + kPole * kHalfLength * turn * turn * sine) / (kCart + kPole);
    const double turning =
        (kGravity * sine - cosine * push) / (kHalfLength * (4.0 / 3.0 - kPole * cosine * cosine / (kCart + kPole)));
    const double speeding = push - kPole * kHalfLength * turning * cosine / (kCart + kPole);
    x += kSeconds * speed;
    speed += kSeconds * speeding;
    angle += kSeconds * turn;
    turn += kSeconds * turning;
    show(observation);
    return {.reward = 1,
            .terminated = std::abs(x) > 2.4 || std::abs(angle) > 12 * std::numbers::pi / 180,
            .truncated = ++steps_ >= 500};
  }
  std::optional<trainkit::StateDict> save() const override {
    return trainkit::StateDict{{"state", std::vector<double>(state_.begin(), state_.end())}, {"steps", steps_}};
  }
  absl::Status load(const trainkit::StateDict& state, const trainkit::BatchView& observation) override {
    TRAINKIT_ASSIGN_OR_RETURN(const auto numbers, trainkit::get_state<std::vector<double>>(state, "state"));
    TRAINKIT_ASSIGN_OR_RETURN(steps_, trainkit::get_state<int64_t>(state, "steps"));
    if (numbers.size() != state_.size()) return absl::InvalidArgumentError("state has another length");
    std::copy(numbers.begin(), numbers.end(), state_.begin());
    show(observation);
    return absl::OkStatus();
  }

 private:
  void show(const trainkit::BatchView& observation) const {
    std::copy(state_.begin(), state_.end(), observation.row<float>(0, 0));
  }
  std::array<double, 4> state_{};  // place, speed, angle, angular speed
  int64_t steps_ = 0;
};

/// A policy and a value function with two hidden layers of 64 units, initialised as in CleanRL's ppo.py.
struct AgentImpl : torch::nn::Module {
  static torch::nn::Linear layer(int64_t in, int64_t out, double gain) {
    torch::nn::Linear linear(in, out);
    torch::nn::init::orthogonal_(linear->weight, gain);
    torch::nn::init::zeros_(linear->bias);
    return linear;
  }
  static torch::nn::Sequential network(int64_t out, double gain) {
    return torch::nn::Sequential(layer(4, 64, std::numbers::sqrt2), torch::nn::Tanh(),
                                 layer(64, 64, std::numbers::sqrt2), torch::nn::Tanh(), layer(64, out, gain));
  }
  trainkit::Categorical policy(const at::Tensor& observation) {
    return trainkit::Categorical(actor->forward(observation));
  }
  at::Tensor value(const at::Tensor& observation) { return critic->forward(observation).squeeze(1); }

  torch::nn::Sequential actor = register_module("actor", network(2, 0.01));
  torch::nn::Sequential critic = register_module("critic", network(1, 1));
};
TORCH_MODULE(Agent);
