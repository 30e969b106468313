#pragma once
/// Checks of nn/fused_ops.h, on a GPU and on the CPU that replaces a GPU.

#include <torch/torch.h>

#include <string>
#include <utility>
#include <vector>

#include "nn/fused_ops.h"
#include "test_util.h"
#include "trainkit/amp/autocast.h"
#include "trainkit/nn/cross_entropy.h"
#include "trainkit/nn/gpt2.h"
#include "trainkit/nn/lora.h"
#include "trainkit/nn/transformer.h"

namespace trainkit::test {

/// Dtypes of the residual stream and of matrix products.
struct Types {
  at::ScalarType stream, product;
  bool uses_autocast() const { return stream != product; }
  /// The error of one rounding, with a margin for a few.
  double tolerance() const { return product == at::kFloat ? 5e-6 : product == at::kHalf ? 3e-3 : 2e-2; }
};

inline const Types kTypes[] = {{at::kFloat, at::kFloat},
                               {at::kFloat, at::kBFloat16},
                               {at::kFloat, at::kHalf},
                               {at::kBFloat16, at::kBFloat16},
                               {at::kHalf, at::kHalf}};

inline double worst_relative(const at::Tensor& a, const at::Tensor& b) {
  if (b.numel() == 0) return 0;
  const at::Tensor expected = b.to(at::kDouble).cpu();
  return ((a.to(at::kDouble).cpu() - expected).abs().max() / expected.abs().max().clamp_min(1e-3)).item<double>();
}

/// Random values of a dtype on a device. `is_shifted`: they begin one value after a multiple of 16 bytes.
inline at::Tensor random_values(at::IntArrayRef sizes, at::ScalarType type, at::Device device,
                                bool is_shifted = false) {
  const at::Tensor values = torch::randn(sizes).to(type).to(device);
  if (!is_shifted) return values.requires_grad_();
  const at::Tensor room = torch::empty({values.numel() + 1}, values.options());
  return room.slice(0, 1).view(sizes).copy_(values).detach().requires_grad_();
}

/// Leaves with the same values in float64 on the CPU.
inline std::vector<at::Tensor> exact_copies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) {
    copies.push_back(tensor.detach().to(at::kDouble).cpu().clone().requires_grad_());
  }
  return copies;
}

inline void check_near(const std::vector<at::Tensor>& values, const std::vector<at::Tensor>& expected,
                       const std::vector<at::Tensor>& inputs, double tolerance) {
  REQUIRE(values.size() == expected.size());
  for (size_t k = 0; k < values.size(); ++k) {
    CAPTURE(k, values[k].sizes());
    CHECK(values[k].sizes() == expected[k].sizes());
    if (!inputs.empty()) CHECK(values[k].scalar_type() == inputs[k].scalar_type());
    CHECK(worst_relative(values[k], expected[k]) < tolerance);
  }
}

inline void check_residual_layer_norm(at::Device device, at::IntArrayRef sizes, const Types& types, bool has_branch,
                                      bool has_bias, bool is_shifted = false) {
  CAPTURE(device, sizes, types.stream, types.product, has_branch, has_bias, is_shifted);
  const AutocastGuard autocast(device, types.product, types.uses_autocast());
  const int64_t width = sizes.back();
  std::vector<at::Tensor> inputs = {random_values(sizes, types.stream, device, is_shifted),
                                    random_values({width}, types.stream, device)};
  if (has_branch) inputs.push_back(random_values(sizes, types.product, device));
  if (has_bias) inputs.push_back(random_values({width}, types.stream, device));
  const auto run = [&](const std::vector<at::Tensor>& of, const auto& norm) {
    return norm(of[0], has_branch ? of[2] : at::Tensor(), of[1], has_bias ? of.back() : at::Tensor());
  };
  const auto ours = run(inputs, [](const auto& x, const auto& branch, const auto& weight, const auto& bias) {
    return detail::residual_layer_norm(x, branch, {weight, bias, 1e-5});
  });
  CHECK(ours.sum.scalar_type() == types.stream);
  CHECK(ours.normed.scalar_type() == types.product);
  CHECK(ours.normed.grad_fn()->name().find("NormFunction") != std::string::npos);

  const std::vector<at::Tensor> exact = exact_copies(inputs);
  const auto expected = run(exact, [&](const auto& x, const auto& branch, const auto& weight, const auto& bias) {
    const at::Tensor sum = branch.defined() ? x + branch : x.view_as(x);
    return detail::ResidualNorm{sum, at::layer_norm(sum, {width}, weight, bias, 1e-5)};
  });
  check_near({ours.sum.detach(), ours.normed.detach()}, {expected.sum.detach(), expected.normed.detach()}, {},
             types.tolerance());
  const at::Tensor d_sum = random_values(sizes, types.stream, device).detach();
  const at::Tensor d_normed = random_values(sizes, types.product, device).detach();
  const auto gradients = torch::autograd::grad({ours.sum, ours.normed}, inputs, {d_sum, d_normed});
  const auto exact_gradients = torch::autograd::grad({expected.sum, expected.normed}, exact,
                                                     {d_sum.to(at::kDouble).cpu(), d_normed.to(at::kDouble).cpu()});
  check_near(gradients, exact_gradients, inputs, types.tolerance());
}

inline void check_bias_gelu(at::Device device, at::IntArrayRef sizes, const Types& types, bool by_tanh,
                            bool is_shifted = false) {
  CAPTURE(device, sizes, types.stream, types.product, by_tanh, is_shifted);
  const std::vector<at::Tensor> inputs = {random_values(sizes, types.product, device, is_shifted),
                                          random_values({sizes.back()}, types.stream, device)};
  const at::Tensor ours = detail::bias_gelu(inputs[0], inputs[1], by_tanh);
  CHECK(ours.scalar_type() == types.product);
  CHECK(ours.grad_fn()->name().find("GeluFunction") != std::string::npos);
  const std::vector<at::Tensor> exact = exact_copies(inputs);
  const at::Tensor expected = at::gelu(exact[0] + exact[1], by_tanh ? "tanh" : "none");
  check_near({ours.detach()}, {expected.detach()}, {}, types.tolerance());
  const at::Tensor d_out = random_values(sizes, types.product, device).detach();
  check_near(torch::autograd::grad({ours}, inputs, {d_out}),
             torch::autograd::grad({expected}, exact, {d_out.to(at::kDouble).cpu()}), inputs, types.tolerance());
}

/// @param spread range of the logits.
inline void check_cross_entropy(at::Device device, int64_t rows, int64_t classes, const Types& types, double spread,
                                bool is_shifted = false) {
  CAPTURE(device, rows, classes, types.stream, types.product, spread, is_shifted);
  const AutocastGuard autocast(device, types.product, types.uses_autocast());
  const at::Tensor logits = (random_values({rows, classes}, types.product, device, is_shifted));
  {
    const at::NoGradGuard no_grad;
    logits.mul_(spread);
  }
  at::Tensor target = torch::randint(classes, {rows});
  if (rows > 4) target[2] = -100;
  const at::Tensor loss = cross_entropy(logits, target.to(device));
  CHECK(loss.scalar_type() == types.stream);
  CHECK(loss.grad_fn()->name().find("CrossEntropyFunction") != std::string::npos);
  const std::vector<at::Tensor> exact = exact_copies({logits});
  const at::Tensor expected = at::cross_entropy_loss(exact[0], target);
  const double tolerance = types.stream == at::kFloat ? 1e-5 : types.tolerance();
  if (rows > 0) CHECK(loss.item<double>() == Approx(expected.item<double>()).epsilon(tolerance).margin(1e-6));
  if (rows == 0) CHECK(loss.isnan().item<bool>());
  const at::Tensor gradient = torch::autograd::grad({loss * 3}, {logits})[0];
  const at::Tensor expected_gradient = torch::autograd::grad({expected * 3}, {exact[0]})[0];
  CHECK(gradient.scalar_type() == types.product);
  if (classes > 1) CHECK(worst_relative(gradient * rows, expected_gradient * rows) < 2 * types.tolerance());
}

/// Ignored, NaN and infinite rows, compared with LibTorch's operation on the CPU.
inline void check_odd_logits(at::Device device) {
  const auto same = [&](const at::Tensor& logits, const at::Tensor& target, int64_t ignore_index) {
    CAPTURE(logits, target, ignore_index);
    const at::Tensor x = logits.to(device).detach().requires_grad_(), y = logits.clone().requires_grad_();
    const at::Tensor loss = cross_entropy(x, target.to(device), ignore_index);
    const at::Tensor expected = at::cross_entropy_loss(y, target, {}, at::Reduction::Mean, ignore_index);
    CHECK(at::allclose(loss.cpu(), expected, 1e-5, 1e-6, /*equal_nan=*/true));
    CHECK(at::allclose(torch::autograd::grad({loss}, {x})[0].cpu(), torch::autograd::grad({expected}, {y})[0], 1e-5,
                       1e-6, /*equal_nan=*/true));
  };
  const at::Tensor logits = torch::randn({4, 3}), target = torch::tensor({1, 0, -100, 2});
  same(logits, target, -100);
  same(logits, torch::tensor({1, 0, 7, 2}), 7);
  same(logits, torch::tensor({1, 0, 0, 2}), 0);
  same(logits, torch::full({4}, -100, at::kLong), -100);
  for (const double odd : {double(NAN), double(INFINITY), double(-INFINITY)}) {
    at::Tensor other = logits.clone();
    other[1][2] = odd;
    same(other, target, -100);
    other[1][0] = odd;
    same(other, target, -100);
    other[1] = odd;
    same(other, target, -100);
  }
  same(torch::tensor({{0.f, 1000.f}, {1000.f, 0.f}}), torch::tensor({0, 0}), -100);
}

/// The output of a model, then the gradients of all parameters that have one.
template <typename Model, typename Forward>
std::vector<at::Tensor> results_of(Model& model, const Forward& forward) {
  torch::manual_seed(11);  // dropout
  model->zero_grad();
  const at::Tensor out = forward(model);
  torch::manual_seed(12);
  out.backward(torch::randn(out.sizes()).to(out.options()));
  std::vector<at::Tensor> all = {out.detach()};
  for (const at::Tensor& parameter : model->parameters()) {
    if (parameter.grad().defined()) all.push_back(parameter.grad().clone());
  }
  return all;
}

/// Checks that a model's blocks give the same with and without our operations, and that these differ.
template <typename Model, typename Forward>
void check_blocks(Model model, at::Device device, const Types& types, const Forward& forward) {
  CAPTURE(device, types.product);
  model->to(device);
  model->to(types.stream);
  const AutocastGuard autocast(device, types.product, types.uses_autocast());
  const auto ours = results_of(model, forward);
  model->set_fused_blocks(false);
  const auto expected = results_of(model, forward);
  model->set_fused_blocks(true);
  REQUIRE(ours.size() == expected.size());
  bool differs = false;
  for (size_t k = 0; k < ours.size(); ++k) {
    CAPTURE(k, ours[k].sizes());
    CHECK(ours[k].scalar_type() == expected[k].scalar_type());
    CHECK(worst_relative(ours[k], expected[k]) < 10 * types.tolerance());
    differs = differs || !ours[k].equal(expected[k]);
  }
  CHECK(differs);
}

inline Transformer small_transformer(bool bias, double dropout) {
  return Transformer(TransformerConfig{.vocab_size = 37,
                                       .block_size = 16,
                                       .n_layers = 2,
                                       .n_heads = 2,
                                       .hidden_dim = 48,
                                       .dropout = dropout,
                                       .bias = bias});
}

inline GPT2Model small_gpt2(const std::string& activation) {
  return GPT2Model(GPT2Config{
      .vocab_size = 37, .n_positions = 16, .n_embd = 48, .n_layer = 2, .n_head = 2, .activation_function = activation});
}

}  // namespace trainkit::test
