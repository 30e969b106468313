// Proximal policy optimisation (PPO) balances a pole on a cart. Run it twice with the same folder, or kill it in
// between: it continues where it was, with the same bits.
//   example_ppo [rollouts] [folder] [seed]
#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <cstdio>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "cart_pole.h"
#include "trainkit/rl/ppo_loss.h"
#include "trainkit/rl/rollout_buffer.h"
#include "trainkit/trainkit.h"

using namespace trainkit;

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

std::unique_ptr<SimulatorPool> make_pool(int64_t simulators, uint64_t seed) {
  return SimulatorPool::create([](int64_t) { return std::make_unique<CartPole>(); }, {{"obs", at::kFloat, {4}}},
                               {"action", at::kLong, {}}, {.simulators = simulators, .seed = seed})
      .value();
}

/// Mean return of the first episodes of 100 simulators under the most probable actions, from other states than those of
/// the training.
double evaluate(Agent& agent) {
  const at::NoGradGuard no_grad;
  const auto pool = make_pool(100, 1'000'000);
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
  const uint64_t seed = argc > 3 ? std::stoull(argv[3]) : 0;
  at::set_num_threads(1);  // the networks are small
  torch::manual_seed(seed);
  auto devices = DeviceReplicator::create([] { return Agent(); }, {.device = at::kCPU}).value();
  Agent agent(std::dynamic_pointer_cast<AgentImpl>(devices->module()));
  const auto pool = make_pool(kSimulators, seed);
  const auto rollout =
      RolloutBuffer::create({{"obs", at::kFloat, {4}}, {"action", at::kLong, {}}, {"log_prob", at::kFloat, {}}},
                            {.horizon = 128, .simulators = kSimulators, .batch_size = 512, .epochs = 10, .seed = seed})
          .value();
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(0);
  rollout->collect_with([&](RolloutBuffer& rows) -> absl::Status {
    const at::NoGradGuard no_grad;
    generator.set_current_seed(hash_key(seed, rows.epoch()));  // so that a resumed run draws the same actions
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
