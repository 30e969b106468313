// Fused operations on a GPU, forward and backward, compared with LibTorch's separate ones. Each contestant replays a
// CUDA graph of ten calls, so that the time is the device's and not that of the launches. Peers with the same names in
// peers/gpu_training.py.
#include <torch/torch.h>

#include "device_rate.h"
#include "nn/gpu/fused_ops.h"
#include "train/graph/step_graphs.h"
#include "trainkit/amp/autocast.h"
#include "trainkit/nn/functional.h"

namespace trainkit::bench {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr int kCalls = 10;

at::Tensor values(at::IntArrayRef sizes, at::ScalarType type, double scale = 1) {
  return torch::randn(sizes, at::TensorOptions(kGpu)).mul_(scale).to(type).requires_grad_();
}

/// Returns the rate of `forward` under bfloat16 autocast and of its gradients for `inputs`, in `rows` per call.
Contestant contestant(const std::string& name, int64_t rows, Tensors inputs, std::function<Tensors()> forward) {
  std::shared_ptr<detail::GraphBackend> backend = detail::make_graph_backend({kGpu});
  TORCH_CHECK(backend, "this build is without CUDA");
  const auto call = [&] {
    Tensors outputs;
    {
      const AutocastGuard autocast(kGpu, at::kBFloat16);
      outputs = forward();
    }
    Tensors ones;
    for (const at::Tensor& output : outputs) ones.push_back(torch::ones_like(output));
    torch::autograd::grad(outputs, inputs, ones);
  };
  for (int k = 0; k < 3; ++k) backend->run_beside(call);
  std::shared_ptr<detail::GraphBackend::Graph> graph = backend->capture([&] {
    for (int k = 0; k < kCalls; ++k) call();
  });
  return {name, [backend, graph, rows, forward](double duration) {  // `forward` keeps the tensors that the graph uses
            return device_rate(duration, [&] {
              graph->replay();
              return kCalls * rows;
            });
          }};
}

void residual_layer_norm_case(benchmark::State& state, int64_t rows, int64_t width) {
  torch::manual_seed(0);
  const at::Tensor x = values({rows, width}, at::kFloat), branch = values({rows, width}, at::kBFloat16);
  const at::Tensor weight = values({width}, at::kFloat);
  const Tensors inputs = {x, branch, weight};
  const auto ours = [=]() -> Tensors {
    const auto [sum, normed] = detail::residual_layer_norm(x, branch, {weight, {}, 1e-5});
    return {sum, normed};
  };
  const auto separate = [=]() -> Tensors {
    const at::Tensor sum = x + branch;
    // autocast converts the input of the next product
    return {sum, at::layer_norm(sum, {width}, weight, {}, 1e-5).to(at::kBFloat16)};
  };
  run_rounds(state, {contestant("rows", rows, inputs, ours), contestant("libtorch", rows, inputs, separate)});
}

void bias_gelu_case(benchmark::State& state, int64_t rows, int64_t width) {
  torch::manual_seed(0);
  const at::Tensor x = values({rows, width}, at::kBFloat16), bias = values({width}, at::kFloat);
  const auto ours = [=]() -> Tensors { return {detail::bias_gelu(x, bias, /*by_tanh=*/false)}; };
  const auto separate = [=]() -> Tensors { return {at::gelu(x + bias.to(at::kBFloat16))}; };
  run_rounds(state, {contestant("rows", rows, {x, bias}, ours), contestant("libtorch", rows, {x, bias}, separate)});
}

void linear_cross_entropy_case(benchmark::State& state, int64_t rows, int64_t width, int64_t classes) {
  torch::manual_seed(0);
  const at::Tensor hidden = values({rows, width}, at::kBFloat16), weight = values({classes, width}, at::kFloat, 0.02);
  const at::Tensor target = torch::randint(classes, {rows}, at::TensorOptions(kGpu).dtype(at::kLong));
  const auto ours = [=]() -> Tensors { return {linear_cross_entropy(hidden, weight, target)}; };
  const auto separate = [=]() -> Tensors { return {at::cross_entropy_loss(at::linear(hidden, weight), target)}; };
  run_rounds(state, {contestant("rows", rows, {hidden, weight}, ours),
                     contestant("libtorch", rows, {hidden, weight}, separate)});
}

}  // namespace

void add_operation_cases() {
  constexpr int kRounds = 5;
  const auto add = [](const std::string& name, std::function<void(benchmark::State&)> body) {
    add_case("BM_GpuOperation/" + name, std::move(body), kRounds);
  };
  const int64_t divisor = quick() ? 128 : 1;  // of the rows
  add("residual_layer_norm_8192x768", [=](auto& state) { residual_layer_norm_case(state, 8192 / divisor, 768); });
  add("residual_layer_norm_16384x384", [=](auto& state) { residual_layer_norm_case(state, 16384 / divisor, 384); });
  add("bias_gelu_8192x3072", [=](auto& state) { bias_gelu_case(state, 8192 / divisor, 3072); });
  add("linear_cross_entropy_8192x768x50257",
      [=](auto& state) { linear_cross_entropy_case(state, 8192 / divisor, 768, 50257); });
}

}  // namespace trainkit::bench
