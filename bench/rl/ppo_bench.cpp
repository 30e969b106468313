// PPO on CartPole with the settings and the network of CleanRL's ppo.py, on one thread, and a rollout of 256
// simulators, with and without the networks. The peers are in peers/ppo_cartpole.py.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include "examples/cart_pole.h"
#include "rounds.h"
#include "trainkit/core/random.h"
#include "trainkit/optim/adam.h"
#include "trainkit/rl/ppo_loss.h"
#include "trainkit/rl/rollout_buffer.h"
#include "trainkit/train/trainer.h"

namespace trainkit {
namespace ppo {

std::unique_ptr<SimulatorPool> make_pool(int64_t simulators, int64_t threads, uint64_t seed) {
  return SimulatorPool::create([](int64_t) { return std::make_unique<CartPole>(); }, {{"obs", at::kFloat, {4}}},
                               {"action", at::kLong, {}}, {.simulators = simulators, .threads = threads, .seed = seed})
      .value();
}

const std::vector<FieldSpec>& recorded_fields() {
  static const std::vector<FieldSpec> fields = {
      {"obs", at::kFloat, {4}}, {"action", at::kLong, {}}, {"log_prob", at::kFloat, {}}};
  return fields;
}

/// Steps the simulators with actions of the policy until the rollout is full. `in_simulators` gets the seconds that the
/// simulators take, `returns` the returns of episodes.
absl::Status collect(Agent& agent, SimulatorPool& pool, RolloutBuffer& rows, const at::Generator& generator,
                     double& in_simulators, std::deque<double>& returns) {
  const at::NoGradGuard no_grad;
  while (!rows.is_full()) {
    const at::Tensor observation = pool.observation()["obs"];
    const Categorical policy = agent->policy(observation);
    const at::Tensor action = policy.sample(generator);
    rows.add({observation, action, policy.log_prob(action)}, agent->value(observation));
    const auto start = bench::Clock::now();
    TRAINKIT_ASSIGN_OR_RETURN(const PoolStep step, pool.step(action));
    in_simulators += bench::seconds_since(start);
    rows.add_outcome(step);
    for (int64_t k = 0; k < step.ended.numel(); ++k) returns.push_back(step.episode_return[k].item<double>());
  }
  return rows.finish({pool.observation()["obs"]}, [&](const Batch& batch) { return agent->value(batch["obs"]); });
}

LossOutput loss(Agent& agent, const Batch& batch) {
  const Categorical policy = agent->policy(batch["obs"]);
  return ppo_loss({.log_prob = policy.log_prob(batch["action"]),
                   .entropy = policy.entropy(),
                   .value = agent->value(batch["obs"]),
                   .old_log_prob = batch["log_prob"],
                   .advantage = batch["advantage"],
                   .returns = batch["return"],
                   .old_value = batch["value"]},
                  {.entropy_weight = 0.01, .value_clip = 0.2});
}

/// Measures from the third rollout on, and ends when the mean return of 100 episodes reaches `enough`.
struct Watch final : Events {
  explicit Watch(double enough) : enough(enough) {}
  absl::Status on_epoch(int64_t epoch) override {
    if (epoch == 2) start = bench::Clock::now(), in_simulators = 0;
    rollouts = epoch;
    while (returns.size() > 100) returns.pop_front();
    const bool is_learnt =
        returns.size() == 100 && std::accumulate(returns.begin(), returns.end(), 0.0) >= 100 * enough;
    return is_learnt ? absl::CancelledError("learnt") : absl::OkStatus();
  }
  const double enough;
  bench::Clock::time_point start;
  double in_simulators = 0;
  std::deque<double> returns;
  int64_t rollouts = 0;
};

constexpr int64_t kRows = 4 * 128;  // of a rollout
constexpr int64_t kTotalSteps = 500'000;

/// Trains for at most `rollouts` rollouts; the learning rate falls over kTotalSteps.
void train(int64_t rollouts, uint64_t seed, Watch& watch) {
  torch::manual_seed(seed);
  auto devices = DeviceReplicator::create([] { return Agent(); }, {.device = at::kCPU}).value();
  Agent agent(std::dynamic_pointer_cast<AgentImpl>(devices->module()));
  const auto pool = make_pool(4, 1, seed);
  const auto rollout =
      RolloutBuffer::create(recorded_fields(),
                            {.horizon = 128, .simulators = 4, .batch_size = kRows / 4, .epochs = 4, .seed = seed})
          .value();
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  rollout->collect_with(
      [&](RolloutBuffer& rows) { return collect(agent, *pool, rows, generator, watch.in_simulators, watch.returns); });
  const int64_t updates = rollout->epoch_length().value();
  auto trainer =
      Trainer::create(*devices, Adam({.lr = 2.5e-4, .eps = 1e-5}),
                      {.max_epochs = rollouts, .grad_clip = 0.5, .schedule = linear_lr(kTotalSteps / kRows * updates)})
          .value();
  trainer.fit(*rollout, loss, {.events = &watch}).value();
}

/// Steps of the environment per second, training included, and without the simulators' time.
void BM_PpoCartPole(benchmark::State& state) {
  at::set_num_threads(1);
  const int64_t rollouts = bench::quick() ? 4 : 80;
  double seconds = 0, in_simulators = 0;
  for (auto _ : state) {
    Watch watch(1e9);
    train(rollouts, 1, watch);
    const double elapsed = bench::seconds_since(watch.start);
    state.SetIterationTime(elapsed);
    seconds += elapsed;
    in_simulators += watch.in_simulators;
  }
  const auto steps = static_cast<double>(state.iterations() * (rollouts - 2) * kRows);
  state.counters["steps"] = steps / seconds;
  state.counters["steps_without_simulators"] = steps / (seconds - in_simulators);
}
BENCHMARK(BM_PpoCartPole)->Iterations(3)->UseManualTime()->Unit(benchmark::kMillisecond);

/// Steps of the environment until the mean return of the last 100 episodes is 475: the median of `seeds` seeds. A seed
/// that does not learn counts 500,000.
void BM_PpoCartPoleLearns(benchmark::State& state, int seeds) {
  at::set_num_threads(1);
  std::vector<double> steps;
  for (auto _ : state) {
    for (int seed = 1; seed <= seeds; ++seed) {
      Watch watch(475);
      train(kTotalSteps / kRows, static_cast<uint64_t>(seed), watch);
      steps.push_back(static_cast<double>(watch.rollouts * kRows));
      std::fprintf(stderr, "seed %d: %.0f steps\n", seed, steps.back());
    }
  }
  state.counters["steps_to_475"] = bench::median(steps);
}
[[maybe_unused]] const bool kLearns = [] {
  const char* seeds = std::getenv("TRAINKIT_BENCH_SEEDS");
  if (!seeds || std::atoi(seeds) < 1) return false;
  benchmark::RegisterBenchmark("BM_PpoCartPoleLearns", BM_PpoCartPoleLearns, std::atoi(seeds))
      ->Iterations(1)
      ->Unit(benchmark::kSecond);
  return true;
}();

/// Memory of a rollout that is written by plain loops.
struct PlainRollout {
  PlainRollout(int64_t horizon, int64_t simulators)
      : horizon(horizon),
        simulators(simulators),
        obs(4 * size()),
        action(size()),
        log_prob(size()),
        value(size()),
        reward(size()),
        advantage(size()),
        returns(size()),
        ended(2 * size()) {}
  size_t size() const { return static_cast<size_t>(horizon * simulators); }

  /// Takes the steps of simulators [begin, end) and computes their advantages.
  void fill(std::vector<CartPole>& carts, const int64_t* actions, int64_t begin, int64_t end) {
    RandomStream random(static_cast<uint64_t>(begin));
    std::vector<float> last(4 * static_cast<size_t>(simulators)), carry(static_cast<size_t>(simulators));
    const std::vector<BatchView::Field> fields = {{reinterpret_cast<std::byte*>(last.data()), 16}};
    for (int64_t i = begin; i < end; ++i) carts[i].reset(random, BatchView(fields, 1, i));
    for (int64_t t = 0; t < horizon; ++t) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t at = t * simulators + i;
        std::copy_n(&last[4 * i], 4, &obs[4 * at]);
        action[at] = actions[at], log_prob[at] = value[at] = 0;
        const BatchView row(fields, 1, i);
        const SimulatorStep step = carts[i].step(reinterpret_cast<const std::byte*>(&actions[at]), random, row);
        reward[at] = step.reward, ended[2 * at] = step.terminated, ended[2 * at + 1] = step.truncated;
        if (step.terminated || step.truncated) carts[i].reset(random, row);
      }
    }
    for (int64_t t = horizon - 1; t >= 0; --t) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t at = t * simulators + i;
        carry[i] = reward[at] - value[at] + (ended[2 * at] || ended[2 * at + 1] ? 0 : 0.9405f * carry[i]);
        advantage[at] = carry[i], returns[at] = carry[i] + value[at];
      }
    }
  }

  const int64_t horizon, simulators;
  std::vector<float> obs;
  std::vector<int64_t> action;
  std::vector<float> log_prob, value, reward, advantage, returns;
  std::vector<char> ended;
};

/// A rollout of 256 simulators x 2,048 steps with its advantages, by two threads. Without networks: actions drawn
/// before, values of 0; the floor is two threads that each run half of the simulators in a plain loop into the same
/// memory, without waiting for each other. With the two networks of the agent; the floor is the networks alone.
void BM_CartPoleRollout(benchmark::State& state) {
  constexpr int64_t kSimulators = 256;
  const int64_t horizon = bench::quick() ? 64 : 2048;
  const bool has_networks = state.range(0) == 1;
  const at::NoGradGuard no_grad;
  at::set_num_threads(2);
  torch::manual_seed(0);
  Agent agent;
  const auto pool = make_pool(kSimulators, 2, 0);
  const auto rollout = RolloutBuffer::create(recorded_fields(),
                                             {.horizon = horizon, .simulators = kSimulators, .batch_size = kSimulators})
                           .value();
  const StateDict begin = rollout->state_dict();
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(0);
  const at::Tensor actions = torch::randint(2, {horizon, kSimulators}, at::kLong), zeros = torch::zeros({kSimulators});
  const auto check = [](const absl::Status& status) {
    if (!status.ok()) throw std::runtime_error(status.ToString());
  };
  const auto fill = [&] {
    check(rollout->load_state_dict(begin));  // its rows are used up
    for (int64_t t = 0; t < horizon; ++t) {
      rollout->add({pool->observation()["obs"], actions[t], zeros}, zeros);
      rollout->add_outcome(pool->step(actions[t]).value());
    }
    check(rollout->finish({pool->observation()["obs"]}, [](const Batch& rows) { return torch::zeros({rows.size()}); }));
    return 1;
  };
  const auto fill_with_networks = [&] {
    check(rollout->load_state_dict(begin));
    double in_simulators = 0;
    std::deque<double> returns;
    check(collect(agent, *pool, *rollout, generator, in_simulators, returns));
    return 1;
  };
  PlainRollout plain(horizon, kSimulators);
  std::vector<CartPole> carts(kSimulators);
  const auto plain_loop = [&] {
    const auto* const drawn = actions.const_data_ptr<int64_t>();
    std::thread other([&] { plain.fill(carts, drawn, kSimulators / 2, kSimulators); });
    plain.fill(carts, drawn, 0, kSimulators / 2);
    other.join();
    return 1;
  };
  const auto networks = [&] {
    const at::Tensor observation = pool->observation()["obs"];
    for (int64_t t = 0; t < horizon; ++t) {
      benchmark::DoNotOptimize(agent->actor->forward(observation));
      benchmark::DoNotOptimize(agent->critic->forward(observation));
    }
    return 1;
  };
  if (has_networks) {
    bench::run_rounds(state,
                      {{"per_second", [&](double duration) { return bench::rate(duration, fill_with_networks); }},
                       {"networks", [&](double duration) { return bench::rate(duration, networks); }}});
  } else {
    bench::run_rounds(state, {{"per_second", [&](double duration) { return bench::rate(duration, fill); }},
                              {"plain_loop", [&](double duration) { return bench::rate(duration, plain_loop); }}});
  }
  state.counters["ms"] = 1e3 / state.counters["per_second"];
  state.counters["steps"] = static_cast<double>(horizon * kSimulators) * state.counters["per_second"];
}
BENCHMARK(BM_CartPoleRollout)->ArgName("networks")->Arg(0)->Arg(1)->Iterations(5)->UseManualTime();

}  // namespace ppo
}  // namespace trainkit
