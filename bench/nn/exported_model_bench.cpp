// What running an exported graph costs: a graph of 1,000 operators on four numbers, compared with the same operators
// called in C++, with gradients recorded.
#include <benchmark/benchmark.h>
#include <torch/torch.h>

#include <filesystem>
#include <string>
#include <vector>

#include "nn/exported/handmade_model.h"
#include "rounds.h"
#include "trainkit/nn/exported_model.h"

namespace trainkit {
namespace {

using test::Json;

constexpr int64_t kCalls = 1000;

/// Value 0 is the weight, 1 the input; calls of mul, add and relu in turn.
Json graph() {
  Json calls = Json::array();
  for (int64_t k = 0; k < kCalls; ++k) {
    Json arguments = {{"self", test::value(k + 1)}};
    if (k % 3 != 2) arguments["other"] = test::value(0);
    calls.push_back({{"op", k % 3}, {"args", arguments}});
  }
  return {{"inputs", Json::parse(R"([["parameter", "weight"], ["input", 0]])")},
          {"calls", calls},
          {"outputs", Json::array({test::value(kCalls + 1)})}};
}

ExportedModel exported() {
  Json description = Json::parse(R"json({
    "version": 1, "inputs": [{"name": "x", "dtype": "float32", "shape": [4]}], "outputs": ["output"],
    "parameters": [{"name": "weight", "requires_grad": true}], "buffers": [], "constants": [], "ties": {},
    "sources": [], "operators": [
      {"name": "aten::mul", "overload": "Tensor", "schema": "aten::mul.Tensor(Tensor self, Tensor other) -> Tensor"},
      {"name": "aten::add", "overload": "Tensor",
       "schema": "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"},
      {"name": "aten::relu", "overload": "", "schema": "aten::relu(Tensor self) -> Tensor"}]})json");
  description["train"] = description["eval"] = graph();
  const std::string path = std::filesystem::temp_directory_path() / "trainkit_bench_calls.tkm";
  TORCH_CHECK(test::write_exported(path, description, {{"weight", torch::rand({4})}}).ok());
  return ExportedModel::load(path).value();
}

void BM_ExportedCalls(benchmark::State& state) {
  at::set_num_threads(1);
  ExportedModel model = exported();
  const at::Tensor x = torch::rand({4}), weight = model->parameters()[0];
  const auto microseconds = [](const auto& work) {  // of processor time for a call
    const double start = bench::processor_seconds();
    benchmark::DoNotOptimize(work());
    return (bench::processor_seconds() - start) * 1e6 / kCalls;
  };
  const auto directly = [&] {
    at::Tensor y = x;
    for (int64_t k = 0; k < kCalls; ++k) y = k % 3 == 0 ? y.mul(weight) : k % 3 == 1 ? y.add(weight) : y.relu();
    return y;
  };
  std::vector<double> direct_us, exported_us, overhead_us;
  for (auto _ : state) {
    direct_us.push_back(microseconds(directly));
    exported_us.push_back(microseconds([&] { return model->forward(x); }));
    overhead_us.push_back(exported_us.back() - direct_us.back());
  }
  state.counters["direct_us"] = bench::median(direct_us);
  state.counters["exported_us"] = bench::median(exported_us);
  state.counters["overhead_us"] = bench::median(overhead_us);
}
BENCHMARK(BM_ExportedCalls)->Iterations(200)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace trainkit
