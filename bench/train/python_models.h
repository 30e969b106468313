#pragma once
/// The models that bench/peers/exported_model.py writes, and what they are trained on.

#include <torch/torch.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rounds.h"

namespace trainkit::bench {

struct PythonModel {
  std::string name;
  int threads;
  std::vector<int64_t> x;  // shape of a batch
  int64_t classes;
  bool has_tokens;  // x and y are (rows, length) int64, else y is (rows)

  int64_t rows() const { return x.front(); }

  /// Inputs and targets of `batches` batches.
  std::pair<at::Tensor, at::Tensor> data(int64_t batches) const {
    torch::manual_seed(0);
    std::vector<int64_t> shape = x;
    shape[0] *= batches;
    if (has_tokens) return {torch::randint(classes, shape), torch::randint(classes, shape)};
    return {torch::randn(shape), torch::randint(classes, {shape[0]})};
  }

  /// The file that the peer has written, by its ending, or nullopt.
  std::optional<std::string> file(const std::string& ending) const {
    const char* folder = std::getenv("TRAINKIT_BENCH_FILES");
    const std::string path = std::string(folder ? folder : "build/bench") + "/" + name + ending;
    return std::filesystem::exists(path) ? std::optional(path) : std::nullopt;
  }
};

inline const std::vector<PythonModel>& python_models() {
  static const std::vector<PythonModel> all = {{"mlp", 1, {64, 64}, 10, false},
                                               {"gpt2", 2, {12, 64}, 65, true},
                                               {"vit_tiny", 2, {16, 3, 64, 64}, 10, false},
                                               {"resnet18", 2, {16, 3, 64, 64}, 10, false}};
  return all;
}

constexpr char kNoFile[] = "run ./dev bench: peers/exported_model.py writes the model";

/// Registers a benchmark for each model, "name/model", which calls run(state, model).
template <class Run>
bool register_python_models(const std::string& name, Run run) {
  for (const PythonModel& model : python_models()) {
    benchmark::RegisterBenchmark((name + "/" + model.name).c_str(), [run, &model](auto& state) { run(state, model); })
        ->UseRealTime()
        ->Unit(benchmark::kMicrosecond)
        ->MinTime(quick() ? 0.05 : 3.0);
  }
  return true;
}

}  // namespace trainkit::bench
