#include <benchmark/benchmark.h>
#include <torch/torch.h>

#include "memory/memory_recorder.h"
#include "trainkit/amp/autocast.h"
#include "trainkit/nn/functional.h"

namespace trainkit {
namespace {

/// Output layer and loss of 1,024 positions with GPT-2's vocabulary, forward and backward; `pieces`:
/// linear_cross_entropy, else the separate functions. `peak`: bytes.
void BM_Head(benchmark::State& state) {
  use_fast_kernels();
  at::set_num_threads(2);
  torch::manual_seed(0);
  constexpr int64_t kPositions = 1024, kClasses = 50257, kWidth = 256;
  const at::Tensor hidden = torch::randn({kPositions, kWidth}).requires_grad_();
  const at::Tensor weight = torch::randn({kClasses, kWidth}).mul_(0.02).requires_grad_();
  const at::Tensor target = torch::randint(kClasses, {kPositions});
  const bool is_bf16 = state.range(1) != 0;
  const auto step = [&] {
    at::Tensor loss;
    {
      const AutocastGuard autocast(at::kCPU, at::kBFloat16, is_bf16);
      loss = state.range(0) != 0 ? linear_cross_entropy(hidden, weight, target)
                                 : cross_entropy(at::linear(hidden, weight), target);
    }
    loss.backward();
    hidden.mutable_grad().reset();
    weight.mutable_grad().reset();
  };
  step();
  for (auto _ : state) step();
  MemoryRecorder recorder(MemoryClass::kActivations, /*keep_trace=*/false);
  step();
  state.counters["peak"] = static_cast<double>(recorder.peak().total());
}
BENCHMARK(BM_Head)
    ->ArgNames({"pieces", "bf16"})
    ->ArgsProduct({{0, 1}, {0, 1}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace trainkit
