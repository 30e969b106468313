// Whole training steps of language models on the CPU, two threads, as in a run: batch, forward, loss, backward,
// clipping, fused AdamW. baby is nanoGPT's CPU model (4 layers, 4 heads, width 128, batches of 12 blocks of 64, 65
// tokens), lm has 3 layers, 4 heads, width 256, batches of 16 blocks of 128, 2048 tokens. The peer,
// peers/language_model.py, trains the same models in Python.
#include <benchmark/benchmark.h>
#include <torch/torch.h>

#include "rounds.h"
#include "training_run.h"
#include "trainkit/nn/functional.h"

namespace trainkit {
namespace {

using bench::LanguageModelTask;

LanguageModelTask lm() {
  return {.rows = 16,
          .model = {.vocab_size = 2048,
                    .block_size = 128,
                    .n_layers = 3,
                    .n_heads = 4,
                    .hidden_dim = 256,
                    .bias = true,
                    .tied_head = false}};
}

void BM_LanguageModel(benchmark::State& state, const LanguageModelTask& task, Precision precision) {
  at::set_num_threads(2);
  use_fast_kernels();  // as every trainer does
  bench::TrainingRun run = bench::language_model_run(task, {.precision = precision}, at::kCPU);
  for (int k = 0; k < 3; ++k) run.step();
  for (auto _ : state) run.step();
  state.counters["tokens"] =
      benchmark::Counter(static_cast<double>(state.iterations() * task.tokens()), benchmark::Counter::kIsRate);
}
void as_long_as_peer(benchmark::internal::Benchmark* benchmark) {
  benchmark->UseRealTime()->Unit(benchmark::kMillisecond)->MinTime(bench::quick() ? 0.05 : 2.0);
}
BENCHMARK_CAPTURE(BM_LanguageModel, baby, bench::nano_gpt_for_cpu(), Precision::kFp32)->Apply(as_long_as_peer);
BENCHMARK_CAPTURE(BM_LanguageModel, baby_bf16, bench::nano_gpt_for_cpu(), Precision::kBf16)->Apply(as_long_as_peer);
BENCHMARK_CAPTURE(BM_LanguageModel, lm, lm(), Precision::kFp32)->Apply(as_long_as_peer);
BENCHMARK_CAPTURE(BM_LanguageModel, lm_bf16, lm(), Precision::kBf16)->Apply(as_long_as_peer);

}  // namespace
}  // namespace trainkit
