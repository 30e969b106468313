#include "read_floats.h"
#include "trainkit/optim/adagrad.h"
#include "trainkit/optim/adam.h"
#include "trainkit/optim/optimizer.h"
#include "trainkit/optim/rmsprop.h"
#include "trainkit/optim/sgd.h"

namespace trainkit {
namespace {

// As in tests/reference/optimizers.py.
const std::vector<std::vector<int64_t>> kShapes = {{16, 8}, {16}, {4, 3, 3, 3}, {5}};
constexpr int kSteps = 100;
constexpr int64_t kNumel = 128 + 16 + 108 + 5;

bool missing(int step, size_t index) { return (index == 1 && step < 20) || (index == 3 && step % 3 == 1); }

std::vector<at::Tensor> split(const at::Tensor& flat) {
  std::vector<at::Tensor> tensors;
  int64_t start = 0;
  for (const auto& shape : kShapes) {
    const int64_t numel = c10::multiply_integers(shape);
    tensors.push_back(flat.narrow(0, start, numel).reshape(shape).clone());
    start += numel;
  }
  return tensors;
}

at::Tensor flat(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& tensor : tensors) flat.push_back(tensor.detach().reshape(-1));
  return torch::cat(flat);
}

std::vector<at::Tensor> parameters(const at::Tensor& init) {
  std::vector<at::Tensor> params = split(init);
  for (at::Tensor& param : params) param.requires_grad_();
  return params;
}

std::unique_ptr<Optimizer> make(const std::string& name, bool capturable) {
  if (name == "adamw") {
    return std::make_unique<AdamW>(AdamWOptions{.lr = 1e-2, .weight_decay = 0.1, .capturable = capturable});
  }
  if (name == "adam") {
    return std::make_unique<Adam>(
        AdamOptions{.lr = 3e-3, .betas = {0.8, 0.95}, .eps = 1e-6, .weight_decay = 0.01, .capturable = capturable});
  }
  if (name == "rmsprop") {
    return std::make_unique<RMSprop>(RMSpropOptions{.lr = 1e-2, .weight_decay = 0.05, .capturable = capturable});
  }
  if (name == "rmsprop_momentum") {
    return std::make_unique<RMSprop>(
        RMSpropOptions{.lr = 3e-3, .alpha = 0.9, .eps = 1e-6, .momentum = 0.8, .capturable = capturable});
  }
  if (name == "rmsprop_centered") {
    return std::make_unique<RMSprop>(RMSpropOptions{.lr = 3e-3,
                                                    .alpha = 0.6,
                                                    .eps = 1e-6,
                                                    .weight_decay = 0.01,
                                                    .momentum = 0.5,
                                                    .centered = true,
                                                    .capturable = capturable});
  }
  if (name == "adagrad") {
    return std::make_unique<Adagrad>(AdagradOptions{.lr = 1e-1, .weight_decay = 0.05, .capturable = capturable});
  }
  if (name == "adagrad_decay") {
    return std::make_unique<Adagrad>(AdagradOptions{
        .lr = 2e-1, .lr_decay = 0.02, .initial_accumulator_value = 0.3, .eps = 1e-6, .capturable = capturable});
  }
  SGDOptions options{.lr = 1e-2, .capturable = capturable};
  if (name != "sgd_momentum") options.weight_decay = 0.05;
  if (name != "sgd") options.momentum = 0.9;
  options.nesterov = name == "sgd_nesterov";
  return std::make_unique<SGD>(options);
}

/// Python's output, computed once for all cases.
const test::TempDir& reference() {
  static const test::TempDir dir;
  if (!std::filesystem::exists(dir / "clip.bin")) test::run_reference("optimizers.py", dir.path().string());
  return dir;
}

/// Parameters after each step, (kSteps, kNumel).
at::Tensor run(const std::string& name, bool capturable, const at::Tensor& init, const at::Tensor& gradients,
               bool with_missing) {
  const std::vector<at::Tensor> params = parameters(init);
  const auto optimizer = make(name, capturable);
  optimizer->add_param_group({.params = {{"a.weight", params[0]}, {"conv.weight", params[2]}}});
  optimizer->add_param_group(
      {.params = {{"a.bias", params[1]}, {"norm.weight", params[3]}}, .lr_multiple = 0.5, .weight_decay = 0.0});
  std::vector<at::Tensor> rows;
  for (int step = 0; step < kSteps; ++step) {
    const std::vector<at::Tensor> grads = split(gradients[step]);
    for (size_t i = 0; i < params.size(); ++i) {
      params[i].mutable_grad() = with_missing && missing(step, i) ? at::Tensor() : grads[i];
    }
    optimizer->step();
    rows.push_back(flat(params));
  }
  return torch::stack(rows);
}

/// Largest |a - b| / max(1, |b|).
double error(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).abs() / b.abs().clamp_min(1)).max().item<double>();
}

TEST_CASE("The optimizers equal Python's over 100 steps to 1e-6: groups, weight decay, lr factors, missing gradients") {
  if (test::python().empty()) TRAINKIT_SKIP("TRAINKIT_PYTHON is not set");
  const test::TempDir& dir = reference();
  const at::Tensor init = test::read_floats(dir / "init.bin", {kNumel});
  const at::Tensor gradients = test::read_floats(dir / "grads.bin", {kSteps, kNumel});
  int compared = 0;
  for (const std::string name : {"adamw", "adam", "sgd", "sgd_momentum", "sgd_nesterov", "rmsprop", "rmsprop_momentum",
                                 "rmsprop_centered", "adagrad", "adagrad_decay"}) {
    for (const bool with_missing : {false, true}) {
      for (const bool capturable : {false, true}) {
        CAPTURE(name, with_missing, capturable);
        const at::Tensor ours = run(name, capturable, init, gradients, with_missing);
        for (const std::string fused : {"", ".fused"}) {
          const std::string path = dir / (name + fused + (with_missing ? ".missing" : "") + ".bin");
          if (!std::filesystem::exists(path)) continue;
          const at::Tensor python = test::read_floats(path, {kSteps, kNumel});
          CHECK(error(ours, python) < 1e-6);
          // The same kernels and numbers give the same bits.
          if (!fused.empty() && !capturable) CHECK(torch::equal(ours, python));
          ++compared;
        }
        CHECK(error(ours[kSteps - 1], init) > 0.05);  // and the parameters moved
      }
    }
  }
  CHECK(compared == 2 * (5 * 4 - 3 + 3 * 2 + 2 * 4));
}

TEST_CASE("clip_grad_norm_ equals torch.nn.utils.clip_grad_norm_: norm and gradients") {
  if (test::python().empty()) TRAINKIT_SKIP("TRAINKIT_PYTHON is not set");
  const test::TempDir& dir = reference();
  const std::vector<at::Tensor> params = parameters(test::read_floats(dir / "init.bin", {kNumel}));
  const at::Tensor gradients = test::read_floats(dir / "grads.bin", {kSteps, kNumel});
  const at::Tensor expected = test::read_floats(dir / "clip.bin", {kSteps, 1 + kNumel});
  SGD optimizer;
  ParamGroup group;
  for (size_t i = 0; i < params.size(); ++i) group.params.push_back({std::to_string(i), params[i]});
  optimizer.add_param_group(group);
  for (int step = 0; step < kSteps; ++step) {
    const std::vector<at::Tensor> grads = split(gradients[step] * (step % 2 ? 0.02f : 1.0f));
    for (size_t i = 0; i < params.size(); ++i) params[i].mutable_grad() = grads[i];
    const at::Tensor norm = clip_grad_norm_(optimizer, 1.0);
    CHECK(torch::equal(norm.reshape(1), expected[step].narrow(0, 0, 1)));
    CHECK(torch::equal(flat(optimizer.gradients()), expected[step].narrow(0, 1, kNumel)));
  }
}

}  // namespace
}  // namespace trainkit
