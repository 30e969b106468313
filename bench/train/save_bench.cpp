// The cost of a save for the training thread: a Transformer of 30 M parameters with AdamW's state, 344 MiB, written and
// flushed in the background.
#include <benchmark/benchmark.h>
#include <stdlib.h>
#include <torch/torch.h>

#include <filesystem>

#include "rounds.h"
#include "trainkit/data/tensor_dataset.h"
#include "trainkit/nn/transformer.h"
#include "trainkit/optim/adam.h"
#include "trainkit/train/checkpoint.h"
#include "trainkit/train/trainer.h"

namespace trainkit {
namespace {

constexpr int64_t kBlock = 64;

/// A temporary folder on disk.
struct Folder {
  Folder() : path((std::filesystem::temp_directory_path() / "trainkit-save-XXXXXX").string()) {
    if (!mkdtemp(path.data())) throw std::runtime_error("no temporary folder");
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::string path;
};

/// Start time of each step.
std::vector<bench::Clock::time_point> run(DeviceReplicator& devices, Prefetcher& loader,
                                          const TrainerOptions& options) {
  std::vector<bench::Clock::time_point> starts;
  auto trainer = Trainer::create(devices, AdamW({.lr = 1e-4}), options).value();
  (void)trainer
      .fit(loader,
           [&](Transformer& model, const Batch& batch) {
             starts.push_back(bench::Clock::now());
             return model->loss(batch["x"], batch["y"]);
           })
      .value();
  return starts;
}

/// Compares windows of equal numbers of steps with and without a save at their start; such runs alternate. `lost_ms` is
/// the median of the extra time of a window with a save: the copy, and the CPU time of the writer thread.
/// `lost_percent` is the same at one save per minute; `waited_ms` is only the time in which training was blocked.
void BM_BackgroundSave(benchmark::State& state) {
  const bool quick = bench::quick();
  const int64_t window = quick ? 2 : 12, windows = quick ? 1 : 4;
  torch::manual_seed(0);
  const auto dataset = std::make_shared<TensorDataset>(std::vector<std::pair<std::string, at::Tensor>>{
      {"x", torch::randint(1000, {64, kBlock})}, {"y", torch::randint(1000, {64, kBlock})}});
  auto loader = Prefetcher::create(dataset, SequentialSampler(dataset->size()), {.batch_size = 2}).value();
  const TransformerConfig config{.vocab_size = 1000,
                                 .block_size = kBlock,
                                 .n_layers = quick ? 1 : 9,
                                 .n_heads = 8,
                                 .hidden_dim = quick ? 64 : 512};
  auto devices = DeviceReplicator::create([&] { return Transformer(config); }, {.device = at::kCPU}).value();
  std::vector<double> lost_ms, waited_ms;
  int64_t bytes = 0;
  for (auto _ : state) {
    const Folder folder;
    TrainerOptions options{.max_epochs = 0, .max_steps = window * (windows + 1) + 2, .log_every = 0};
    const auto peace = run(*devices, *loader, options);
    options.save_every = window;
    options.output_dir = folder.path;
    options.keep_last = 1;
    const auto saving = run(*devices, *loader, options);
    const auto seconds = [](const auto& starts, int64_t from, int64_t to) {
      return std::chrono::duration<double>(starts[static_cast<size_t>(to)] - starts[static_cast<size_t>(from)]).count();
    };
    std::vector<double> steps, without;
    for (int64_t i = window; i < window * (windows + 1); ++i) steps.push_back(seconds(peace, i, i + 1));
    for (int64_t w = 1; w <= windows; ++w) without.push_back(seconds(peace, w * window - 1, (w + 1) * window - 1));
    for (int64_t w = 1; w <= windows; ++w) {  // the save of step w * window is before the start of the next step
      lost_ms.push_back(1e3 * (seconds(saving, w * window - 1, (w + 1) * window - 1) - bench::median(without)));
      waited_ms.push_back(1e3 * (seconds(saving, w * window - 1, w * window) - bench::median(steps)));
    }
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path)) {
      if (entry.is_regular_file()) bytes += static_cast<int64_t>(entry.file_size());
    }
    state.SetIterationTime(seconds(saving, 0, static_cast<int64_t>(saving.size()) - 1));
  }
  state.counters["megabytes"] = static_cast<double>(bytes) / 1e6 / static_cast<double>(state.iterations());
  state.counters["lost_ms"] = bench::median(lost_ms);
  state.counters["waited_ms"] = bench::median(waited_ms);
  state.counters["lost_percent"] = bench::median(lost_ms) / 60e3 * 100;
}
BENCHMARK(BM_BackgroundSave)->Iterations(3)->UseManualTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace trainkit
