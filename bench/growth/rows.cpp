// One row of `./dev bench --growth` at one size: growth_rows ROW SIZE FOLDER. Prints what the work costs as JSON:
// processor seconds of the process, peak memory above that before the work, and bytes read from files. run.py makes
// the table. A new row is a function below and a line in run.py. The recommender's rows are in recommender.cpp.
#include <fmt/format.h>
#include <sys/resource.h>
#include <torch/nn/module.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "../text/made_up.h"
#include "measure.h"
#include "report/report.h"
#include "trainkit/arrays/array_file.h"
#include "trainkit/data/tensor_dataset.h"
#include "trainkit/distributed/process_group.h"
#include "trainkit/logging/sinks.h"
#include "trainkit/memory/batch_size_planner.h"
#include "trainkit/nn/transformer.h"
#include "trainkit/optim/adam.h"
#include "trainkit/text/documents.h"
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

std::string write_text(int64_t size, const std::string& folder) {
  const std::string path = folder + "/text.txt";
  std::ofstream(path, std::ios::binary) << bench::made_up_text(size);
  return path;
}

/// The start of a run on characters: the text is read and tokenized, or found unchanged.
void start(const std::string& text) {
  CachedText opened = CachedText::open(text, {}, text + ".prepared", text + ".tokens").value();
  const auto tokenizer = CharTokenizer::from_text(opened.characters().value()).value();
  require(opened.tokens(*tokenizer).status());
}

/// The first start on a text of `size` MiB.
void text(int64_t size, const std::string& folder) {
  const std::string path = write_text(size, folder);
  measure([&] { start(path); });
}

/// The second start, when the text was older than two seconds at the first.
void text_again(int64_t size, const std::string& folder) {
  const std::string path = write_text(size, folder);
  std::this_thread::sleep_for(std::chrono::milliseconds(2100));
  start(path);
  measure([&] { start(path); });
}

/// GPT-2's tokens of `size` MiB, by all threads together.
void tokens(int64_t size, const std::string&) {
  const std::string text = bench::made_up_text(size);
  const auto tokenizer = bench::pairs_of_letters();
  measure([&] { require(tokenizer->encode(text, [](std::span<const TokenId>) { return absl::OkStatus(); })); });
}

/// Runs trainkit-hsi, of the folder of this program, and prints its cost. The peak is without that of a start.
void measure_scene(const std::vector<std::string>& flags) {
  constexpr int64_t kStartMb = 170;
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "trainkit-hsi";
  std::string command = program;
  for (const std::string& flag : flags) command += " '" + flag + "'";
  rusage before{}, after{};
  getrusage(RUSAGE_CHILDREN, &before);
  if (std::system((command + " > /dev/null").c_str()) != 0) std::exit(1);
  getrusage(RUSAGE_CHILDREN, &after);
  const auto seconds = [](const rusage& usage) {
    return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
  };
  fmt::print("{{\"seconds\": {:.6f}, \"peak_mb\": {:.1f}, \"read_mb\": 0}}\n", seconds(after) - seconds(before),
             static_cast<double>(after.ru_maxrss) / 1024 - kStartMb);
}

/// Writes a scene of `size` MiB, 200 bands in float32, with 4,000 labelled pixels of 4 classes. Returns the flags of a
/// run of one step on it.
std::vector<std::string> write_scene(int64_t size, const std::string& folder) {
  constexpr int64_t kBands = 200, kWidth = 256, kLabelled = 4000;
  const int64_t height = (size << 20) / (4 * kBands * kWidth);
  at::Tensor truth = at::zeros({height * kWidth}, at::kByte);
  const int64_t step = std::max<int64_t>(height * kWidth / kLabelled, 1);
  truth.slice(0, 0, std::nullopt, step)
      .copy_(at::arange(truth.slice(0, 0, std::nullopt, step).size(0)).remainder(4) + 1);
  require(write_npy(folder + "/gt.npy", truth.view({height, kWidth})));
  // By rows: the peak memory of a program that is started includes that of the process that starts it.
  require(write_npy(folder + "/cube.npy", at::kFloat, {height, kWidth, kBands}, [&](const AppendElements& append) {
    for (int64_t row = 0; row < height; ++row) {
      if (const absl::Status status = append(at::rand({kWidth, kBands})); !status.ok()) return status;
    }
    return absl::OkStatus();
  }));
  return {"--cube",
          folder + "/cube.npy",
          "--gt",
          folder + "/gt.npy",
          "--output_dir",
          folder + "/run",
          "--model",
          "mlp",
          "--max_steps",
          "1",
          "--no-write_maps",
          "--device",
          "cpu"};
}

/// A run of one step on a scene of `size` MiB.
void scene(int64_t size, const std::string& folder) { measure_scene(write_scene(size, folder)); }

/// Classifies a scene of `size` MiB.
void predict_scene(int64_t size, const std::string& folder) {
  measure_scene(write_scene(4, folder));
  write_scene(size, folder);
  measure_scene({"predict", folder + "/run", "--cube", folder + "/cube.npy", "--out", folder + "/out"});
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
                         {"ranks", ranks},
                         {"text", text},
                         {"text_again", text_again},
                         {"tokens", tokens},
                         {"scene", scene},
                         {"predict_scene", predict_scene}});
}
