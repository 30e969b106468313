// Whole training steps of language models on the CPU, two threads, as in a run: batch, forward, loss, backward,
// clipping, fused AdamW. baby is nanoGPT's CPU model (4 layers, 4 heads, width 128, batches of 12 blocks of 64, 65
// tokens), lm has 3 layers, 4 heads, width 256, batches of 16 blocks of 128, 2048 tokens. The peer,
// peers/language_model.py, trains the same models in Python.
#include <benchmark/benchmark.h>
#include <torch/torch.h>

#include "../rounds.h"
#include "core/waiting_threads.h"
#include "trainkit/nn/functional.h"
#include "trainkit/nn/transformer.h"
#include "trainkit/optim/adam.h"
#include "trainkit/train/train_step.h"

namespace trainkit {
namespace {

struct Task {
  int64_t rows;
  TransformerConfig model;
};

Task baby() {
  return {.rows = 12, .model = {.vocab_size = 65, .block_size = 64, .n_layers = 4, .n_heads = 4, .hidden_dim = 128}};
}

Task lm() {
  return {.rows = 16,
          .model = {.vocab_size = 2048,
                    .block_size = 128,
                    .n_layers = 3,
                    .n_heads = 4,
                    .hidden_dim = 256,
                    .bias = true,
                    .tied_head = false}};
}

void BM_LanguageModel(benchmark::State& state, const Task& task, Precision precision) {
  at::set_num_threads(2);
  use_fast_kernels();  // as every trainer does
  detail::let_waiting_threads_sleep();
  torch::manual_seed(0);
  auto devices = DeviceReplicator::create([&] { return Transformer(task.model); }, {.device = at::kCPU}).value();
  AdamW optimizer({.lr = 1e-3, .betas = {0.9, 0.99}, .weight_decay = 0.1});
  TrainStep step(*devices, optimizer, {.precision = precision, .grad_clip = 1});
  const int64_t block = task.model.block_size;
  const auto fields = std::make_shared<const std::vector<FieldSpec>>(
      std::vector<FieldSpec>{{"x", at::kLong, {block}}, {"y", at::kLong, {block}}});
  const auto ids = [&] { return torch::randint(task.model.vocab_size, {task.rows, block}, at::kLong); };
  std::vector<Batch> batches;
  for (int k = 0; k < 8; ++k) batches.emplace_back(fields, std::vector<at::Tensor>{ids(), ids()});
  const LossFunction loss =
      make_loss_function([](Transformer& model, const Batch& batch) { return model->loss(batch["x"], batch["y"]); });
  size_t next = 0;
  for (int k = 0; k < 3; ++k) step(batches[next++ % batches.size()], loss);
  for (auto _ : state) step(batches[next++ % batches.size()], loss);
  state.counters["tokens"] =
      benchmark::Counter(static_cast<double>(state.iterations() * task.rows * block), benchmark::Counter::kIsRate);
}
void as_long_as_peer(benchmark::internal::Benchmark* benchmark) {
  benchmark->UseRealTime()->Unit(benchmark::kMillisecond)->MinTime(bench::quick() ? 0.05 : 2.0);
}
BENCHMARK_CAPTURE(BM_LanguageModel, baby, baby(), Precision::kFp32)->Apply(as_long_as_peer);
BENCHMARK_CAPTURE(BM_LanguageModel, baby_bf16, baby(), Precision::kBf16)->Apply(as_long_as_peer);
BENCHMARK_CAPTURE(BM_LanguageModel, lm, lm(), Precision::kFp32)->Apply(as_long_as_peer);
BENCHMARK_CAPTURE(BM_LanguageModel, lm_bf16, lm(), Precision::kBf16)->Apply(as_long_as_peer);

}  // namespace
}  // namespace trainkit
