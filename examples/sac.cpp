// Soft actor-critic (SAC) swings a pendulum up: three players (critics, actor, temperature), a target network, and one
// thread that acts, stores and trains. Run it twice with the same folder, or kill it in between: it continues where it
// was, with the same bits.
//   example_sac [steps] [folder] [seed]
#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <numbers>
#include <string>

#include "trainkit/nn/target_network.h"
#include "trainkit/rl/distributions.h"
#include "trainkit/rl/replay_buffer.h"
#include "trainkit/rl/simulator_pool.h"
#include "trainkit/trainkit.h"

using namespace trainkit;

/// A pendulum whose motor is too weak to lift it in one move. Equations, limits and reward of gymnasium's Pendulum-v1.
class Pendulum final : public Simulator {
 public:
  void reset(RandomStream& random, const BatchView& observation) override {
    angle_ = (2 * random.uniform() - 1) * std::numbers::pi;
    speed_ = 2 * random.uniform() - 1;
    steps_ = 0;
    show(observation);
  }
  SimulatorStep step(const std::byte* action, RandomStream& /*random*/, const BatchView& observation) override {
    const double torque = 2.0 * std::clamp<double>(*reinterpret_cast<const float*>(action), -1, 1);
    const double from_top = std::remainder(angle_, 2 * std::numbers::pi);
    const double cost = from_top * from_top + 0.1 * speed_ * speed_ + 0.001 * torque * torque;
    speed_ = std::clamp(speed_ + (15 * std::sin(angle_) + 3 * torque) * 0.05, -8.0, 8.0);
    angle_ += speed_ * 0.05;
    show(observation);
    return {.reward = static_cast<float>(-cost), .truncated = ++steps_ >= 200};
  }
  std::optional<StateDict> save() const override {
    return StateDict{{"angle", angle_}, {"speed", speed_}, {"steps", steps_}};
  }
  absl::Status load(const StateDict& state, const BatchView& observation) override {
    TRAINKIT_ASSIGN_OR_RETURN(angle_, get_state<double>(state, "angle"));
    TRAINKIT_ASSIGN_OR_RETURN(speed_, get_state<double>(state, "speed"));
    TRAINKIT_ASSIGN_OR_RETURN(steps_, get_state<int64_t>(state, "steps"));
    show(observation);
    return absl::OkStatus();
  }

 private:
  void show(const BatchView& observation) const {
    auto* const numbers = observation.row<float>(0, 0);
    numbers[0] = static_cast<float>(std::cos(angle_));
    numbers[1] = static_cast<float>(std::sin(angle_));
    numbers[2] = static_cast<float>(speed_);
  }
  double angle_ = 0, speed_ = 0;
  int64_t steps_ = 0;
};

torch::nn::Sequential network(int64_t in, int64_t out) {
  return torch::nn::Sequential(torch::nn::Linear(in, 64), torch::nn::ReLU(), torch::nn::Linear(64, 64),
                               torch::nn::ReLU(), torch::nn::Linear(64, out));
}

/// Two estimates of the return of an action.
struct CriticsImpl : torch::nn::Module {
  at::Tensor least(const at::Tensor& observation, const at::Tensor& action) {
    const at::Tensor input = at::cat({observation, action}, 1);
    return at::min(first->forward(input), second->forward(input)).squeeze(1);
  }
  torch::nn::Sequential first = register_module("first", network(4, 1));
  torch::nn::Sequential second = register_module("second", network(4, 1));
};
TORCH_MODULE(Critics);

struct SacImpl : torch::nn::Module {
  TanhNormal policy(const at::Tensor& observation) {
    const at::Tensor output = actor->forward(observation);
    return {output.narrow(1, 0, 1), output.narrow(1, 1, 1).clamp(-5, 2).exp()};
  }
  torch::nn::Sequential actor = register_module("actor", network(3, 2));
  Critics critics = register_module("critics", Critics());
  at::Tensor log_temperature = register_parameter("log_temperature", torch::zeros({1}));
};
TORCH_MODULE(Sac);

std::unique_ptr<SimulatorPool> make_pool(int64_t simulators, uint64_t seed) {
  return SimulatorPool::create([](int64_t) { return std::make_unique<Pendulum>(); }, {{"obs", at::kFloat, {3}}},
                               {"action", at::kFloat, {1}}, {.simulators = simulators, .seed = seed})
      .value();
}

/// Mean return of 50 episodes without noise, from other states than those of the training.
double evaluate(Sac& sac) {
  const at::NoGradGuard no_grad;
  const auto pool = make_pool(50, 1'000'000);
  for (;;) {
    const PoolStep step = pool->step(sac->policy(pool->observation()["obs"]).mode()).value();
    if (step.ended.numel() > 0) return step.episode_return.mean().item<double>();  // all end after 200 steps
  }
}

/// Updates the target network after each step, before a checkpoint of it.
struct Follow final : Events {
  explicit Follow(TargetNetwork& target) : target(target) {}
  absl::Status on_step(int64_t /*step*/, const StepMetrics& /*metrics*/) override {
    target.update();
    return absl::OkStatus();
  }
  TargetNetwork& target;
};

/// The players, in the order of their updates. Source: Haarnoja et al. 2018, arXiv 1812.05905, algorithm 1.
std::vector<Player> make_players(Critics target, const at::Generator& generator) {
  const auto adam = [](double lr) { return std::make_shared<Adam>(AdamOptions{.lr = lr}); };
  const auto critics_loss = [target, generator](Sac& sac, const Batch& batch) mutable {
    at::Tensor aim;
    {
      const at::NoGradGuard no_grad;
      const auto [action, log_prob] = sac->policy(batch["next"]).sample(generator);
      const at::Tensor value = target->least(batch["next"], action) - sac->log_temperature.exp() * log_prob;
      aim = (batch["reward"] + 0.99 * ~batch["terminated"] * value).unsqueeze(1);
    }
    const at::Tensor input = at::cat({batch["obs"], batch["action"]}, 1);
    return at::mse_loss(sac->critics->first->forward(input), aim) +
           at::mse_loss(sac->critics->second->forward(input), aim);
  };
  const auto actor_loss = [](Sac& sac, const Batch& batch, const Shared& shared) {
    const at::Tensor value = sac->critics->least(batch["obs"], shared.at("action"));
    return (sac->log_temperature.exp().detach() * shared.at("log_prob") - value).mean();
  };
  const auto temperature_loss = [](Sac& sac, const Batch&, const Shared& shared) {
    constexpr double kEntropy = -1;  // aimed at: minus the number of components of an action
    return -(sac->log_temperature.exp() * (shared.at("log_prob").detach() + kEntropy)).mean();
  };
  return {
      {.name = "critics", .parameters = {"critics.*"}, .optimizer = adam(1e-3), .loss = critics_loss},
      {.name = "actor", .parameters = {"actor.*"}, .optimizer = adam(1e-3), .loss = actor_loss},
      {.name = "temperature", .parameters = {"log_temperature"}, .optimizer = adam(1e-3), .loss = temperature_loss}};
}

int main(int argc, char** argv) {
  const int64_t steps = argc > 1 ? std::stoll(argv[1]) : 8000;
  const std::string folder = argc > 2 ? argv[2] : "";
  constexpr int64_t kRandomSteps = 1000;
  const uint64_t seed = argc > 3 ? std::stoull(argv[3]) : 0;
  at::set_num_threads(1);  // the networks are small
  torch::manual_seed(seed);
  auto devices = DeviceReplicator::create([] { return Sac(); }, {.device = at::kCPU}).value();
  Sac sac(std::dynamic_pointer_cast<SacImpl>(devices->module()));
  Critics slow;
  TargetNetwork target(*sac->critics, slow.ptr(), {.tau = 0.005});
  const auto pool = make_pool(1, seed);
  // A batch of 256 rows for each new row.
  const std::vector<FieldSpec> fields = {{"obs", at::kFloat, {3}},
                                         {"action", at::kFloat, {1}},
                                         {"reward", at::kFloat, {}},
                                         {"next", at::kFloat, {3}},
                                         {"terminated", at::kBool, {}}};
  const auto replay =
      ReplayBuffer::create(fields, {.capacity = 100'000, .min_size = kRandomSteps, .samples_per_insert = 256}).value();
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(0);
  TrainerOptions options{.max_steps = steps - kRandomSteps + 1};
  if (!folder.empty()) options.output_dir = folder, options.save_every = 100;
  if (std::filesystem::exists(folder + "/checkpoints/latest")) options.resume = "latest";
  // Actions and their probabilities, for the losses of the actor and the temperature.
  const auto shared = [&](Sac& model, const Batch& batch) -> Shared {
    const auto [action, log_prob] = model->policy(batch["obs"]).sample(generator);
    return {{"action", action}, {"log_prob", log_prob}};
  };
  auto trainer = Trainer::create(*devices, make_players(slow, generator), shared, options).value();
  Follow follow(target);
  auto session = trainer.begin(*replay, {.events = &follow, .state = {{"simulators", *pool}, {"target", target}}});
  if (!session.ok()) return std::fprintf(stderr, "%s\n", error_text(session.status()).c_str()), 1;
  const auto row_fields = std::make_shared<const std::vector<FieldSpec>>(fields);
  while (replay->rows() < steps) {
    generator.set_current_seed(hash_key(seed, replay->rows()));  // so that a resumed run draws the same numbers
    const at::Tensor observation = pool->observation()["obs"];
    at::Tensor action = torch::empty({1, 1}).uniform_(-1, 1, generator);
    if (replay->rows() >= kRandomSteps) {
      const at::NoGradGuard no_grad;
      action = sac->policy(observation).sample(generator).first;
    }
    const PoolStep step = pool->step(action).value();
    const Batch row(row_fields, {observation, action, step.reward, step.next("obs"), step.terminated});
    if (const auto status = replay->append(row); !status.ok()) return std::puts(error_line(status).c_str()), 1;
    if (replay->can_sample()) session->step().value();
    if (replay->rows() % 1000 == 0) {
      std::printf("step %5ld  return %7.1f  temperature %.3f\n", static_cast<long>(replay->rows()), evaluate(sac),
                  sac->log_temperature.exp().item<double>());
    }
  }
  session->finish().value();
  const double mean = evaluate(sac);
  std::printf("mean return of 50 episodes: %.1f\n", mean);
  return steps < 4000 || mean >= (steps < 8000 ? -400 : -170) ? 0 : 1;
}
