// Cross-entropy forward and backward compared with at::cross_entropy_loss: a small classifier, a character model,
// GPT-2's vocabulary.
#include <benchmark/benchmark.h>
#include <torch/torch.h>

#include "rounds.h"
#include "trainkit/nn/functional.h"

namespace trainkit {
namespace {

void BM_CrossEntropy(benchmark::State& state) {
  at::set_num_threads(2);
  torch::manual_seed(0);
  const at::Tensor logits = torch::randn({state.range(0), state.range(1)}).requires_grad_();
  const at::Tensor target = torch::randint(state.range(1), {state.range(0)});
  const auto contestant = [&](const char* name, auto loss_of) {
    return bench::Contestant{name, [=](double duration) {
                               return bench::rate(duration, [&] {
                                 logits.mutable_grad().reset();
                                 loss_of(logits, target).backward();
                                 return static_cast<double>(logits.size(0));
                               });
                             }};
  };
  bench::run_rounds(state, {contestant("rows", [](auto& x, auto& y) { return cross_entropy(x, y); }),
                            contestant("libtorch", [](auto& x, auto& y) { return at::cross_entropy_loss(x, y); })});
}
BENCHMARK(BM_CrossEntropy)
    ->ArgNames({"rows", "classes"})
    ->Args({64, 10})
    ->Args({768, 65})
    ->Args({256, 50257})
    ->UseManualTime()
    ->Iterations(10);

}  // namespace
}  // namespace trainkit
