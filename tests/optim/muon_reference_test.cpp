#include "read_floats.h"
#include "trainkit/optim/adam.h"

namespace trainkit {
namespace {

// As in tests/reference/muon.py.
const std::vector<std::vector<int64_t>> kShapes = {{16, 8}, {8, 24}, {12, 12}};
constexpr int kSteps = 50;
constexpr int64_t kNumel = 128 + 192 + 144;

std::vector<at::Tensor> split(const at::Tensor& flat) {
  std::vector<at::Tensor> tensors;
  int64_t start = 0;
  for (const auto& shape : kShapes) {
    tensors.push_back(flat.narrow(0, start, shape[0] * shape[1]).reshape(shape).clone());
    start += shape[0] * shape[1];
  }
  return tensors;
}

at::Tensor run(const MuonOptions& options, const at::Tensor& init, const at::Tensor& gradients) {
  std::vector<at::Tensor> params = split(init);
  ParamGroup group{.params = {}, .orthogonalize = true};
  for (size_t i = 0; i < params.size(); ++i) {
    group.params.push_back({std::to_string(i), params[i].requires_grad_()});
  }
  Muon optimizer(options);
  optimizer.add_param_group(group);
  std::vector<at::Tensor> rows;
  for (int step = 0; step < kSteps; ++step) {
    const std::vector<at::Tensor> grads = split(gradients[step]);
    for (size_t i = 0; i < params.size(); ++i) params[i].mutable_grad() = grads[i];
    optimizer.step();
    std::vector<at::Tensor> flat;
    for (const at::Tensor& param : params) flat.push_back(param.detach().reshape(-1));
    rows.push_back(torch::cat(flat));
  }
  return torch::stack(rows);
}

TEST_CASE("Muon equals torch.optim.Muon over 50 steps: tall, wide and square matrices, both rate adjustments") {
  if (test::python().empty()) TRAINKIT_SKIP("TRAINKIT_PYTHON is not set");
  const test::TempDir dir;
  test::run_reference("muon.py", dir.path().string());
  const at::Tensor init = test::read_floats(dir / "init.bin", {kNumel});
  const at::Tensor gradients = test::read_floats(dir / "grads.bin", {kSteps, kNumel});
  const std::pair<const char*, MuonOptions> cases[] = {
      {"default", {.lr = 1e-2}},
      {"match", {.lr = 1e-2, .match_rms_adamw = true, .weight_decay = 0.2}},
      {"plain", {.lr = 1e-2, .momentum = 0.8, .nesterov = false, .weight_decay = 0}}};
  for (const auto& [name, options] : cases) {
    const at::Tensor python = test::read_floats(dir / (std::string(name) + ".bin"), {kSteps, kNumel});
    for (const bool capturable : {false, true}) {
      MuonOptions ours = options;
      ours.capturable = capturable;
      const at::Tensor matrices = run(ours, init, gradients);
      const double error = (matrices - python).abs().max().item<double>();
      INFO(name << ", capturable " << capturable << ": largest difference " << error);
      // The same operations on the same numbers give the same bits; with the rate as a float32 tensor they differ.
      CHECK(error <= (capturable ? 1e-6 : 0));
      CHECK((matrices[kSteps - 1] - init).abs().max().item<double>() > 0.1);  // and the matrices moved
    }
  }
}

}  // namespace
}  // namespace trainkit
