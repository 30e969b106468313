// The models of exported_model_bench.cpp as TorchScript, trained by a loop with LibTorch's AdamW.
#include <benchmark/benchmark.h>
#include <torch/script.h>

#include "python_models.h"

namespace trainkit {
namespace {

const bool kTorchScript =
    bench::register_python_models("BM_TorchScriptModel", [](benchmark::State& state, const bench::PythonModel& python) {
      const auto path = python.file(".pt");
      if (!path) return state.SkipWithError(bench::kNoFile);
      at::set_num_threads(python.threads);
      torch::jit::Module model = torch::jit::load(*path);
      model.train();
      std::vector<at::Tensor> parameters;
      for (const at::Tensor& parameter : model.parameters()) parameters.push_back(parameter);
      torch::optim::AdamW optimizer(parameters, torch::optim::AdamWOptions(1e-4).weight_decay(1e-2));
      const auto [x, y] = python.data(8);
      int64_t next = 0;
      const auto step = [&, x = x, y = y] {
        const int64_t first = next++ % 8 * python.rows();
        const at::Tensor scores = model.forward({x.slice(0, first, first + python.rows())}).toTensor();
        const at::Tensor targets = y.slice(0, first, first + python.rows());
        optimizer.zero_grad();
        at::cross_entropy_loss(scores.reshape({-1, scores.size(-1)}), targets.reshape({-1})).backward();
        optimizer.step();
      };
      for (int k = 0; k < 3; ++k) step();
      for (auto _ : state) step();
    });

}  // namespace
}  // namespace trainkit
