// Steps of exported PyTorch models in a session of Trainer: batch, forward, loss, backward, fused AdamW. The peer,
// peers/exported_model.py, writes the models and trains them in Python; torchscript_bench.cpp trains them as
// TorchScript.
#include <benchmark/benchmark.h>

#include "python_models.h"
#include "trainkit/data/prefetcher.h"
#include "trainkit/data/tensor_dataset.h"
#include "trainkit/nn/exported_model.h"
#include "trainkit/nn/functional.h"
#include "trainkit/optim/adam.h"
#include "trainkit/train/trainer.h"

namespace trainkit {
namespace {

void train(benchmark::State& state, const bench::PythonModel& python, bool exact) {
  const auto path = python.file(".tkm");
  if (!path) return state.SkipWithError(bench::kNoFile);
  use_fast_kernels();  // as every trainer does
  at::set_num_threads(python.threads);
  const auto [x, y] = python.data(8);
  const auto rows = std::make_shared<TensorDataset>(NamedTensors{{"x", x}, {"y", y}});
  const auto loader = Prefetcher::create(rows, SequentialSampler(rows->size()), {.batch_size = python.rows()}).value();
  const ExportedModel model = ExportedModel::load(*path, {.exact = exact}).value();
  auto devices = DeviceReplicator::create([&] { return model.copy(); }, {.device = at::kCPU}).value();
  const auto loss = [](ExportedModel& net, const Batch& batch) {
    const at::Tensor scores = net->forward(batch["x"]);
    return cross_entropy(scores.reshape({-1, scores.size(-1)}), batch["y"].reshape({-1}));
  };
  auto trainer = Trainer::create(*devices, AdamW({.lr = 1e-4}), {.max_steps = 1'000'000'000, .log_every = 0}).value();
  Session session = trainer.begin(*loader, loss).value();
  for (int k = 0; k < 3; ++k) session.step().value();
  for (auto _ : state) session.step().value();
}

const bool kKernels = bench::register_python_models(
    "BM_ExportedModel", [](auto& state, const auto& model) { train(state, model, /*exact=*/false); });
const bool kExact = bench::register_python_models(
    "BM_ExportedModelExact", [](auto& state, const auto& model) { train(state, model, /*exact=*/true); });

}  // namespace
}  // namespace trainkit
