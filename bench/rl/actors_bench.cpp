// Publishing weights, and steps of simulators, each compared with plain loops over the same memory in the same rounds.
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>
#include <torch/torch.h>

#include <cstring>
#include <memory>
#include <vector>

#include "examples/cart_pole.h"
#include "rounds.h"
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

/// Steps of 256 simulators per second, compared with a plain loop over the same simulators in one thread.
void BM_SimulatorSteps(benchmark::State& state) {
  constexpr int64_t kCount = 256;
  const auto pool =
      SimulatorPool::create([](int64_t) { return std::make_unique<CartPole>(); }, {{"obs", at::kFloat, {4}}},
                            {"action", at::kLong, {}}, {.simulators = kCount, .threads = state.range(0)})
          .value();
  const at::Tensor actions = torch::arange(kCount).remainder(2);
  const auto run = [&] { return benchmark::DoNotOptimize(pool->step(actions).value()), kCount; };
  std::vector<CartPole> carts(kCount);
  std::vector<float> rows(kCount * 4);
  const std::vector<BatchView::Field> fields = {{reinterpret_cast<std::byte*>(rows.data()), 16}};
  const auto* const pushes = reinterpret_cast<const std::byte*>(actions.const_data_ptr<int64_t>());
  RandomStream random(1);
  for (int64_t i = 0; i < kCount; ++i) carts[i].reset(random, BatchView(fields, 1, i));
  const auto floor = [&] {
    for (int64_t i = 0; i < kCount; ++i) {
      const BatchView row(fields, 1, i);
      if (carts[i].step(pushes + 8 * i, random, row).terminated) carts[i].reset(random, row);
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
