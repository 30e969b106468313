// Proximal policy optimisation (PPO) balances a pole on a cart. Run it twice with the same folder, or kill it in
// between: it continues where it was, with the same bits.
//   example_ppo [rollouts] [folder]
#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <numbers>
#include <numeric>
#include <string>

#include "trainkit/rl/distributions.h"
#include "trainkit/rl/ppo_loss.h"
#include "trainkit/rl/rollout_buffer.h"
#include "trainkit/rl/simulator_pool.h"
#include "trainkit/trainkit.h"

using namespace trainkit;

/// A pole on a cart that is pushed to the left or to the right. Equations: Barto, Sutton, Anderson 1983, "Neuronlike
/// adaptive elements that can solve difficult learning control problems", without friction. Constants, Euler's method
/// and limits are those of gymnasium's CartPole-v1.
class CartPole final : public Simulator {
 public:
  void reset(RandomStream& random, const BatchView& observation) override {
    for (double& number : state_) number = 0.1 * random.uniform() - 0.05;
    steps_ = 0;
    show(observation);
  }
  SimulatorStep step(const std::byte* action, RandomStream& /*random*/, const BatchView& observation) override {
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
  std::optional<StateDict> save() const override {
    return StateDict{{"state", std::vector<double>(state_.begin(), state_.end())}, {"steps", steps_}};
  }
  absl::Status load(const StateDict& state, const BatchView& observation) override {
    TRAINKIT_ASSIGN_OR_RETURN(const auto numbers, get_state<std::vector<double>>(state, "state"));
    TRAINKIT_ASSIGN_OR_RETURN(steps_, get_state<int64_t>(state, "steps"));
    if (numbers.size() != state_.size()) return absl::InvalidArgumentError("state has another length");
    std::copy(numbers.begin(), numbers.end(), state_.begin());
    show(observation);
    return absl::OkStatus();
  }

 private:
  void show(const BatchView& observation) const {
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
  Categorical policy(const at::Tensor& observation) { return Categorical(actor->forward(observation)); }
  at::Tensor value(const at::Tensor& observation) { return critic->forward(observation).squeeze(1); }

  torch::nn::Sequential actor = register_module("actor", network(2, 0.01));
  torch::nn::Sequential critic = register_module("critic", network(1, 1));
};
TORCH_MODULE(Agent);

LossOutput loss(Agent& agent, const Batch& batch) {
  const Categorical policy = agent->policy(batch["obs"]);
  return ppo_loss({.log_prob = policy.log_prob(batch["action"]),
                   .entropy = policy.entropy(),
                   .value = agent->value(batch["obs"]),
                   .old_log_prob = batch["log_prob"],
                   .advantage = batch["advantage"],
                   .returns = batch["return"]},
                  {.entropy_weight = 0.01});
}

/// Simulators that begin with other states than those of the training.
std::unique_ptr<SimulatorPool> make_pool(int64_t simulators, uint64_t seed) {
  return SimulatorPool::create([](int64_t) { return std::make_unique<CartPole>(); }, {{"obs", at::kFloat, {4}}},
                               {"action", at::kLong, {}}, {.simulators = simulators, .seed = seed})
      .value();
}

/// Mean return of the first episodes of 100 simulators under the most probable actions.
double evaluate(Agent& agent) {
  const at::NoGradGuard no_grad;
  const auto pool = make_pool(100, 1);
  std::vector<double> returns(100, 0);
  for (size_t open = returns.size(); open > 0;) {
    const PoolStep step = pool->step(agent->policy(pool->observation()["obs"]).mode()).value();
    for (int64_t k = 0; k < step.ended.numel(); ++k) {
      double& first = returns[step.ended[k].item<int64_t>()];
      if (first == 0) first = step.episode_return[k].item<double>(), --open;
    }
  }
  return std::accumulate(returns.begin(), returns.end(), 0.0) / 100;
}

/// Prints the return of the episodes that ended in a rollout.
struct Report final : Events {
  explicit Report(const RolloutBuffer& rollout) : rollout(rollout) {}
  absl::Status on_epoch(int64_t epoch) override {
    const auto metrics = rollout.metrics();
    if (epoch % 5 == 0 && metrics.contains("episode_return")) {
      std::printf("rollout %3ld  mean return %.1f\n", static_cast<long>(epoch), metrics.at("episode_return"));
    }
    return absl::OkStatus();
  }
  const RolloutBuffer& rollout;
};

int main(int argc, char** argv) {
  const int64_t rollouts = argc > 1 ? std::stoll(argv[1]) : 25;
  const std::string folder = argc > 2 ? argv[2] : "";
  constexpr int64_t kSimulators = 32;
  constexpr uint64_t kSeed = 0;
  at::set_num_threads(1);  // the networks are small
  torch::manual_seed(kSeed);
  auto devices = DeviceReplicator::create([] { return Agent(); }, {.device = at::kCPU}).value();
  Agent agent(std::dynamic_pointer_cast<AgentImpl>(devices->module()));
  const auto pool = make_pool(kSimulators, kSeed);
  const auto rollout =
      RolloutBuffer::create({{"obs", at::kFloat, {4}}, {"action", at::kLong, {}}, {"log_prob", at::kFloat, {}}},
                            {.horizon = 128, .simulators = kSimulators, .batch_size = 512, .epochs = 10, .seed = kSeed})
          .value();
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(0);
  rollout->collect_with([&](RolloutBuffer& rows) -> absl::Status {
    const at::NoGradGuard no_grad;
    generator.set_current_seed(hash_key(kSeed, rows.epoch()));  // so that a resumed run draws the same actions
    while (!rows.is_full()) {
      const at::Tensor observation = pool->observation()["obs"];
      const Categorical policy = agent->policy(observation);
      const at::Tensor action = policy.sample(generator);
      rows.add({observation, action, policy.log_prob(action)}, agent->value(observation));
      TRAINKIT_ASSIGN_OR_RETURN(const PoolStep step, pool->step(action));
      rows.add_outcome(step);
    }
    return rows.finish({pool->observation()["obs"]}, [&](const Batch& batch) { return agent->value(batch["obs"]); });
  });

  const int64_t steps = rollouts * rollout->epoch_length().value();
  TrainerOptions options{.max_steps = steps, .grad_clip = 0.5, .schedule = linear_lr(steps)};
  if (!folder.empty()) options.output_dir = folder, options.save_every = 50;
  if (std::filesystem::exists(folder + "/checkpoints/latest")) options.resume = "latest";
  auto trainer = Trainer::create(*devices, Adam({.lr = 1e-3, .eps = 1e-5}), options).value();
  Report report(*rollout);
  const auto result = trainer.fit(*rollout, loss, {.events = &report, .state = {{"simulators", *pool}}});
  if (!result.ok()) return std::fprintf(stderr, "%s\n", error_text(result.status()).c_str()), 1;
  const double mean = evaluate(agent);
  std::printf("mean return of 100 episodes: %.1f after %ld steps of %ld simulators\n", mean,
              static_cast<long>(rollouts * 128), static_cast<long>(kSimulators));
  return rollouts < 8 || mean >= (rollouts < 25 ? 250 : 475) ? 0 : 1;
}
