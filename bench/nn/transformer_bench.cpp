// Forward, loss and backward of nanoGPT's CPU model: 4 layers, 4 heads, width 128, blocks of 64, batches of 12, two
// threads. The peer, peers/transformer_step.py, is the same model in Python.
#include <benchmark/benchmark.h>
#include <torch/torch.h>

#include "trainkit/nn/functional.h"
#include "trainkit/nn/transformer.h"

namespace trainkit {
namespace {

constexpr int64_t kRows = 12;
constexpr int64_t kBlock = 64;
constexpr int64_t kVocabulary = 65;

void BM_TransformerStep(benchmark::State& state) {
  use_fast_kernels();  // as every trainer does
  at::set_num_threads(2);
  torch::manual_seed(0);
  Transformer model(TransformerConfig{
      .vocab_size = kVocabulary, .block_size = kBlock, .n_layers = 4, .n_heads = 4, .hidden_dim = 128});
  model->set_gradient_checkpointing(state.range(0) != 0);
  const at::Tensor x = torch::randint(kVocabulary, {kRows, kBlock}, at::kLong);
  const at::Tensor y = torch::randint(kVocabulary, {kRows, kBlock}, at::kLong);
  for (auto _ : state) {
    model->zero_grad();
    language_model_loss(model->forward(x), y).backward();
  }
  state.counters["tokens"] =
      benchmark::Counter(static_cast<double>(state.iterations() * kRows * kBlock), benchmark::Counter::kIsRate);
}
BENCHMARK(BM_TransformerStep)->ArgName("checkpointing")->Arg(0)->Arg(1)->UseRealTime()->Unit(benchmark::kMillisecond);

/// `slide` as in GenerateOptions: with 1 every token after the first block costs a forward of the whole block, as
/// without a cache.
void BM_Generate(benchmark::State& state) {
  at::set_num_threads(2);
  torch::manual_seed(0);
  Transformer model(TransformerConfig{
      .vocab_size = kVocabulary, .block_size = kBlock, .n_layers = 4, .n_heads = 4, .hidden_dim = 128});
  const int64_t tokens = state.range(0);
  for (auto _ : state) {
    benchmark::DoNotOptimize(generate(model, {1}, {.max_tokens = tokens, .slide = state.range(1)}));
  }
  state.counters["tokens"] =
      benchmark::Counter(static_cast<double>(state.iterations() * tokens), benchmark::Counter::kIsRate);
}
BENCHMARK(BM_Generate)
    ->ArgNames({"tokens", "slide"})
    ->Args({20, 0})
    ->Args({500, 0})
    ->Args({500, 1})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace trainkit
