// One row of `./dev bench --growth` at one size: growth_rows ROW SIZE FOLDER. Prints what the work costs as JSON:
// processor seconds of the process, peak memory above that before the work, and bytes read from files. run.py makes
// the table. A new row is a function below and a line in run.py. The recommender's rows are in recommender.cpp.
#include <fmt/format.h>
#include <torch/nn/module.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include "measure.h"
#include "report/report.h"
#include "trainkit/data/tensor_dataset.h"
#include "trainkit/distributed/process_group.h"
#include "trainkit/logging/sinks.h"
#include "trainkit/memory/batch_size_planner.h"
#include "trainkit/nn/transformer.h"
#include "trainkit/optim/adam.h"
#include "trainkit/train/checkpoint.h"
#include "trainkit/train/step_memory.h"
#include "trainkit/train/weights.h"

namespace trainkit {
namespace {

using namespace bench;

/// `count` parameters of `width` values.
struct Parameters final : torch::nn::Module {
  Parameters(int64_t count, int64_t width, at::ScalarType type) {
    for (int64_t i = 0; i < count; ++i)
      register_parameter(fmt::format("layer{}_w", i), at::ones({width}, type), /*requires_grad=*/false);
  }
};

/// Loads a file of `size` MiB in bfloat16 into a model of its size.
void weights(int64_t size, const std::string& folder) {
  Parameters model(1, size << 19, at::kBFloat16);
  const std::string path = folder + "/w.safetensors";
  require(save_safetensors(Fs::posix(), path, named_tensors(model)));
  measure([&] { require(load_weights(model, path).status()); });
}

/// Loads a checkpoint with `size` tensors in its state.
void state(int64_t size, const std::string& folder) {
  CheckpointContents contents;
  for (int64_t i = 0; i < size; ++i) contents.state.emplace(fmt::format("t{}", i), at::scalar_tensor(i, at::kLong));
  auto store = CheckpointStore::open(folder).value();
  require(store.save(1, contents));
  measure([&] { require(store.load(1).status()); });
}

/// Writes and reads a PyTorch file of AdamW's state of `size` parameters.
void optimizer(int64_t size, const std::string& folder) {
  Parameters model(size, 2, at::kFloat);
  AdamW adam({.lr = 1e-3});
  for (at::Tensor& parameter : model.parameters()) parameter.requires_grad_();
  adam.add_param_groups(default_param_groups(model));
  measure([&] {
    require(save_torch_optimizer(Fs::posix(), folder + "/o.pt", adam));
    require(load_torch_optimizer(adam, folder + "/o.pt"));
  });
}

std::string line_of(int64_t step) {
  const double loss = 2 + 1 / static_cast<double>(step);
  std::string line = to_json({.step = step,
                              .epoch = static_cast<double>(step) / 500,
                              .values = {{"loss", loss},
                                         {"grad_norm", 0.51234 * loss},
                                         {"samples_per_second", 812.44 * loss},
                                         {"tokens_per_second", 104000 * loss},
                                         {"data_wait_fraction", 0.02},
                                         {"copy_fraction", 0.001},
                                         {"utilisation", 0.98},
                                         {"queue_depth", 2},
                                         {"host_memory_bytes", 512e6}},
                              .lr = {1e-3}});
  line.pop_back();
  return line + fmt::format(",\"time\":{:.3f}}}\n", 1.7e9 + 0.01 * static_cast<double>(step));
}

/// Writes the metrics.jsonl of a run with `size` records.
void write_records(int64_t size, const std::string& folder) {
  std::ofstream file(folder + "/metrics.jsonl");
  for (int64_t step = 1; step <= size; ++step) file << line_of(step);
}

/// Removes the last record of `size`, as a resume does.
void resume(int64_t size, const std::string& folder) {
  write_records(size, folder);
  auto logger = JsonlLogger::open(folder + "/metrics.jsonl").value();
  measure([&] { require(logger->rewind(size - 1)); });
}

/// Writes the report of a run with `size` records.
void report(int64_t size, const std::string& folder) {
  write_records(size, folder);
  measure([&] { require(detail::write_report(folder)); });
}

/// Renders the live page of a run with `size` records and one more than at the last time.
void watch(int64_t size, const std::string& folder) {
  write_records(size, folder);
  detail::LiveReport page({folder});
  require(page.body().status());
  std::ofstream(folder + "/metrics.jsonl", std::ios::app) << line_of(size + 1);
  measure([&] { require(page.body().status()); });
}

/// Plans the memory of a language model's step with a vocabulary of `size`.
void plan(int64_t size, const std::string&) {
  constexpr int64_t kLength = 64;
  const at::Tensor ids = at::zeros({8, kLength}, at::kLong);
  const StepRecipe recipe{
      .make_model = [=] { return Transformer(TransformerConfig{.vocab_size = size, .block_size = kLength}).ptr(); },
      .make_optimizer = [] { return std::make_unique<AdamW>(); },
      .loss = make_loss_function([](Transformer& model, const Batch& batch) {
        return language_model_loss(model->forward(batch["x"]), batch["x"]);
      }),
      .dataset = std::make_shared<TensorDataset>(std::vector<std::pair<std::string, at::Tensor>>{{"x", ids}})};
  require(record_step_memory(recipe, 1, 1).status());  // what is loaded once
  measure([&] {
    require(MemoryEstimate::create([&](int64_t rows) { return record_step_memory(recipe, rows, 1); }).status());
  });
}

/// Sums 64 KiB over `size` ranks of this machine; the cost of one sum for one rank.
void ranks(int64_t size, const std::string&) {
  ::setenv("TORCH_FR_BUFFER_SIZE", "0", 1);  // one recorder per process; ranks in threads would write to it together
  constexpr int kSums = 200;
  std::vector<std::shared_ptr<ProcessGroup>> groups(static_cast<size_t>(size));
  const auto on_each = [&](const std::function<void(int64_t)>& work) {
    std::vector<std::thread> threads;
    for (int64_t rank = 0; rank < size; ++rank) threads.emplace_back(work, rank);
    for (std::thread& thread : threads) thread.join();
  };
  LaunchEnvironment launch;
  launch.world_size = launch.local_world_size = size;
  launch.launcher = Launcher::kTorchrun;
  launch.master_port = static_cast<uint16_t>(12000 + ::getpid() % 20000);
  on_each([&](int64_t rank) {
    LaunchEnvironment own = launch;
    own.rank = own.local_rank = rank;
    groups[static_cast<size_t>(rank)] = ProcessGroup::create(own).value();
  });
  measure(
      [&] {
        on_each([&](int64_t rank) {
          const at::Tensor values = at::ones({16 << 10});
          for (int i = 0; i < kSums; ++i) require(groups[static_cast<size_t>(rank)]->all_reduce(values.fill_(1)));
        });
      },
      static_cast<double>(size * kSums));
}

}  // namespace
}  // namespace trainkit

int main(int count, char** words) {
  using namespace trainkit;
  return bench::run_row(count, words,
                        {{"weights", weights},
                         {"state", state},
                         {"optimizer", optimizer},
                         {"resume", resume},
                         {"report", report},
                         {"watch", watch},
                         {"plan", plan},
                         {"ranks", ranks}});
}
