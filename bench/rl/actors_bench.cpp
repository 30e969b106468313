// Publishing weights, and steps of simulators, each compared with plain loops over the same memory in the same rounds.
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>
#include <torch/torch.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "rounds.h"
#include "trainkit/rl/simulator_pool.h"
#include "trainkit/rl/weights_publisher.h"

namespace trainkit {
namespace actors {

/// publish() of 10 million parameters in 40 tensors, compared with memcpy of the same bytes by one thread into memory
/// that was written before.
void BM_PublishWeights(benchmark::State& state) {
  torch::nn::Sequential model;
  for (int i = 0; i < 20; ++i) model->push_back(torch::nn::Linear(500, 1000));
  WeightsPublisher weights(*model);
  std::vector<at::Tensor> from = model->parameters(), to;
  for (const at::Tensor& tensor : from) to.push_back(torch::zeros_like(tensor));
  int64_t step = 0;
  const auto publish = [&] {
    weights.publish(++step);
    return 1;
  };
  const auto floor = [&] {
    for (size_t i = 0; i < from.size(); ++i) {
      std::memcpy(to[i].mutable_data_ptr(), from[i].const_data_ptr(), from[i].nbytes());
    }
    return 1;
  };
  bench::run_rounds(state, {{"per_second", [&](double duration) { return bench::rate(duration, publish); }},
                            {"floor", [&](double duration) { return bench::rate(duration, floor); }}});
}
BENCHMARK(BM_PublishWeights)->UseManualTime();

/// The arithmetic of CartPole's step.
struct Cart {
  double x = 0, speed = 0, angle = 0.01, turn = 0;
  bool step(bool right) {
    const double force = right ? 10 : -10, cosine = std::cos(angle), sine = std::sin(angle);
    const double push = (force + 0.05 * turn * turn * sine) / 1.1;
    const double turning = (9.8 * sine - cosine * push) / (0.5 * (4.0 / 3.0 - 0.1 * cosine * cosine / 1.1));
    x += 0.02 * speed;
    speed += 0.02 * (push - 0.05 * turning * cosine / 1.1);
    angle += 0.02 * turn;
    turn += 0.02 * turning;
    return std::abs(x) > 2.4 || std::abs(angle) > 0.2095;
  }
  void show(float* out) const {
    out[0] = static_cast<float>(x);
    out[1] = static_cast<float>(speed);
    out[2] = static_cast<float>(angle);
    out[3] = static_cast<float>(turn);
  }
};

struct CartSimulator final : Simulator {
  void reset(RandomStream& random, const BatchView& observation) override {
    cart = {};
    cart.angle = 0.1 * random.uniform() - 0.05;
    cart.show(observation.row<float>(0, 0));
  }
  SimulatorStep step(const std::byte* action, RandomStream&, const BatchView& observation) override {
    const bool fell = cart.step(*reinterpret_cast<const int64_t*>(action) == 1);
    cart.show(observation.row<float>(0, 0));
    return {.reward = 1, .terminated = fell};
  }
  Cart cart;
};

/// Steps of 256 simulators per second, compared with a loop over the same arithmetic in one thread.
void BM_SimulatorSteps(benchmark::State& state) {
  constexpr int64_t kCount = 256;
  const auto pool =
      SimulatorPool::create([](int64_t) { return std::make_unique<CartSimulator>(); }, {{"obs", at::kFloat, {4}}},
                            {"action", at::kLong, {}}, {.simulators = kCount, .threads = state.range(0)})
          .value();
  const at::Tensor actions = torch::arange(kCount).remainder(2);
  const auto run = [&] { return benchmark::DoNotOptimize(pool->step(actions).value()), kCount; };
  std::vector<Cart> carts(kCount);
  std::vector<float> rows(kCount * 4);
  RandomStream random(1);
  const auto floor = [&] {
    for (int64_t i = 0; i < kCount; ++i) {
      if (carts[i].step(i % 2 == 1)) carts[i] = Cart{.angle = 0.1 * random.uniform() - 0.05};
      carts[i].show(&rows[4 * i]);
    }
    benchmark::DoNotOptimize(rows.data());
    return kCount;
  };
  bench::run_rounds(state, {{"per_second", [&](double duration) { return bench::rate(duration, run); }},
                            {"floor", [&](double duration) { return bench::rate(duration, floor); }}});
}
BENCHMARK(BM_SimulatorSteps)->Arg(1)->Arg(2)->UseManualTime()->Iterations(15);

}  // namespace actors
}  // namespace trainkit
