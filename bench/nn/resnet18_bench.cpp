// Forward, loss and backward of ResNet18 on the CPU: 16 images of 224 x 224, channels_last, two threads, in float32 and
// under bfloat16 autocast. The peer, peers/resnet18_step.py, uses torchvision's model.
#include <ATen/autocast_mode.h>
#include <benchmark/benchmark.h>
#include <torch/torch.h>

#include "trainkit/nn/functional.h"
#include "trainkit/nn/resnet18.h"

namespace trainkit {
namespace {

void BM_ResNet18Step(benchmark::State& state) {
  constexpr int64_t kRows = 16;
  const bool bf16 = state.range(0) != 0;
  use_fast_kernels();  // as every trainer does
  at::set_num_threads(2);
  torch::manual_seed(0);
  ResNet18 model(ResNet18Options{.num_classes = 7});
  for (auto& parameter : model->parameters()) {
    if (parameter.dim() == 4) parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
  }
  const at::Tensor x = torch::randn({kRows, 3, 224, 224}).contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor y = torch::randint(7, {kRows}, at::kLong);
  const auto step = [&] {
    model->zero_grad();
    at::autocast::set_autocast_enabled(at::kCPU, bf16);
    const at::Tensor loss = at::cross_entropy_loss(model->forward(x), y);
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    loss.backward();
  };
  step();
  for (auto _ : state) step();
  state.counters["pictures"] =
      benchmark::Counter(static_cast<double>(state.iterations() * kRows), benchmark::Counter::kIsRate);
}
BENCHMARK(BM_ResNet18Step)->ArgName("bf16")->Arg(0)->Arg(1)->UseRealTime()->Unit(benchmark::kMillisecond)->MinTime(3);

}  // namespace
}  // namespace trainkit
