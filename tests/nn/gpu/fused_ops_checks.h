#pragma once
/// Checks of nn/gpu/fused_ops.h, on a GPU and on the CPU that replaces a GPU.

#include <torch/torch.h>

#include <string>
#include <utility>
#include <vector>

#include "nn/gpu/fused_gpu_block.h"
#include "nn/gpu/fused_ops.h"
#include "test_util.h"
#include "trainkit/amp/autocast.h"
#include "trainkit/nn/functional.h"
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

/// The output layer and its loss in pieces of 2048 rows, compared with separate operations in float64; twice over one
/// graph. @param wants_hidden, wants_weight whether the inputs require a gradient.
inline void check_linear_cross_entropy(at::Device device, int64_t rows, int64_t classes, const Types& types,
                                       bool wants_hidden = true, bool wants_weight = true) {
  CAPTURE(device, rows, classes, types.stream, types.product, wants_hidden, wants_weight);
  constexpr int64_t kWidth = 24;
  const AutocastGuard autocast(device, types.product, types.uses_autocast());
  const at::Tensor hidden = random_values({rows, kWidth}, types.stream, device),
                   weight = random_values({classes, kWidth}, types.stream, device);
  hidden.requires_grad_(wants_hidden);
  weight.requires_grad_(wants_weight);
  at::Tensor target = torch::randint(classes, {rows});
  if (rows > 4) target[2] = -100;
  const at::Tensor loss = linear_cross_entropy(hidden, weight, target.to(device));
  CHECK(loss.scalar_type() == types.stream);
  const std::vector<at::Tensor> exact = exact_copies({hidden, weight});
  const at::Tensor expected = at::cross_entropy_loss(at::linear(exact[0], exact[1]), target);
  const double tolerance = types.stream == at::kFloat && types.product == at::kFloat ? 1e-5 : types.tolerance();
  CHECK(loss.item<double>() == Approx(expected.item<double>()).epsilon(tolerance));
  CHECK(loss.requires_grad() == (wants_hidden || wants_weight));
  if (!loss.requires_grad()) return;
  CHECK(loss.grad_fn()->name() == "LinearCrossEntropyBackward");
  std::vector<at::Tensor> inputs, exact_inputs;
  if (wants_hidden) inputs.push_back(hidden), exact_inputs.push_back(exact[0]);
  if (wants_weight) inputs.push_back(weight), exact_inputs.push_back(exact[1]);
  const auto first = torch::autograd::grad({loss * 3}, inputs, {}, /*retain_graph=*/true);
  const auto second = torch::autograd::grad({loss * 3}, inputs);
  const auto expected_gradients = torch::autograd::grad({expected * 3}, exact_inputs);
  for (size_t k = 0; k < inputs.size(); ++k) {
    CHECK(first[k].equal(second[k]));
    CHECK(first[k].scalar_type() == types.stream);
    const double largest = expected_gradients[k].abs().max().item<double>();
    CHECK(worst_relative(first[k] / largest, expected_gradients[k] / largest) < 2 * types.tolerance());
  }
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

/// @param distinct number of ids that occur.
inline void check_embedding(at::Device device, at::IntArrayRef shape, int64_t width, int64_t distinct) {
  CAPTURE(device, shape, width, distinct);
  const at::Tensor weight = random_values({50, width}, at::kFloat, device);
  const at::Tensor ids = torch::randint(distinct, shape).to(device);
  const at::Tensor ours = trainkit::embedding_lookup(ids, weight);
  CHECK(ours.grad_fn()->name().find("EmbeddingFunction") != std::string::npos);
  CHECK(ours.equal(at::embedding(weight, ids)));
  const at::Tensor d_out = torch::randn(ours.sizes()).to(device);
  const at::Tensor gradient = torch::autograd::grad({ours}, {weight}, {d_out}, /*retain_graph=*/true)[0];
  const std::vector<at::Tensor> exact = exact_copies({weight});
  const at::Tensor expected =
      torch::autograd::grad({at::embedding(exact[0], ids.cpu())}, exact, {d_out.to(at::kDouble).cpu()})[0];
  CHECK(worst_relative(gradient, expected) < 2e-6);
  CHECK(gradient.equal(torch::autograd::grad({ours}, {weight}, {d_out}, /*retain_graph=*/true)[0]));
  if (ids.numel() > 768) return;  // LibTorch's gradient sorts more ids, which the simulated device cannot
  const at::Tensor factor = torch::randn(ours.sizes()).to(device).requires_grad_();
  const auto first = torch::autograd::grad({(ours * factor).sum()}, {weight}, {}, true, /*create_graph=*/true)[0];
  const at::Tensor second = torch::autograd::grad({(first * weight).sum()}, {factor})[0];  // the rows of the table
  CHECK(torch::allclose(second, ours, 1e-5, 1e-6));
}

/// Checks that a block in two nodes has the bits of its operations one by one, also of gradients, twice over one graph.
/// Under autocast gradients of weights are not rounded to the dtype of the products.
/// @param frozen number of weights, from the first, that require no gradient.
inline void check_fused_gpu_block(at::Device device, const Types& types, bool has_bias, bool is_transposed,
                                  size_t frozen) {
  const bool has_branch = has_bias != is_transposed;
  CAPTURE(device, types.stream, types.product, has_bias, is_transposed, has_branch, frozen);
  constexpr int64_t kWidth = 48, kHeads = 3;
  const AutocastGuard autocast(device, types.product, types.uses_autocast());
  const auto weight = [&](int64_t in, int64_t out) {
    return random_values(is_transposed ? at::IntArrayRef{in, out} : at::IntArrayRef{out, in}, types.stream, device);
  };
  const auto vector = [&](int64_t width) { return random_values({width}, types.stream, device); };
  const auto bias = [&](int64_t width) { return has_bias ? vector(width) : at::Tensor(); };
  const detail::BlockWeights w{vector(kWidth),
                               bias(kWidth),
                               weight(kWidth, 3 * kWidth),
                               bias(3 * kWidth),
                               weight(kWidth, kWidth),
                               bias(kWidth),
                               vector(kWidth),
                               bias(kWidth),
                               weight(kWidth, 4 * kWidth),
                               bias(4 * kWidth),
                               weight(4 * kWidth, kWidth),
                               bias(kWidth)};
  std::vector<at::Tensor> inputs{random_values({2, 7, kWidth}, types.stream, device)};
  for (const at::Tensor& one : {w.ln_1, w.qkv, w.proj, w.fc, w.out, w.ln_2, w.ln_1_bias, w.qkv_bias, w.proj_bias,
                                w.ln_2_bias, w.fc_bias, w.out_bias}) {
    if (one.defined()) inputs.push_back(one);
  }
  for (size_t k = 1; k <= frozen; ++k) inputs[k].requires_grad_(false);
  inputs.erase(inputs.begin() + 1, inputs.begin() + 1 + static_cast<int64_t>(frozen));
  if (has_branch) inputs.push_back(random_values({2, 7, kWidth}, types.product, device));
  const detail::ResidualStream x{inputs[0], has_branch ? inputs.back() : at::Tensor()};
  const auto attention = [](const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
    return at::scaled_dot_product_attention(query, key, value, {}, 0.0, /*is_causal=*/true);
  };
  const auto linear = [&](const at::Tensor& x, const at::Tensor& by, const at::Tensor& add) {
    return at::linear(x, is_transposed ? by.t() : by, add);
  };
  const auto attend = [&](const at::Tensor& normed) {
    std::vector<at::Tensor> heads;
    for (const at::Tensor& part : linear(normed, w.qkv, w.qkv_bias).split(kWidth, 2)) {
      heads.push_back(part.view({2, 7, kHeads, kWidth / kHeads}).transpose(1, 2));
    }
    return linear(attention(heads[0], heads[1], heads[2]).transpose(1, 2).flatten(2), w.proj, w.proj_bias);
  };
  const auto mlp = [&](const at::Tensor& normed) {
    return linear(detail::bias_gelu(linear(normed, w.fc, {}), w.fc_bias, /*by_tanh=*/true), w.out, w.out_bias);
  };
  const detail::BlockOptions options{.n_heads = kHeads,
                                     .scale = 1,
                                     .eps = 1e-5,
                                     .activation = detail::Activation::kGeluTanh,
                                     .weights_are_transposed = is_transposed};
  REQUIRE(detail::has_fused_gpu_block(x, w, options));
  const at::Tensor ours = detail::fused_gpu_block(x, w, options, attention).added();
  const at::Tensor separate =
      detail::residual_block(x, {w.ln_1, w.ln_1_bias, 1e-5}, attend, {w.ln_2, w.ln_2_bias, 1e-5}, mlp).added();
  CHECK(ours.equal(separate));
  const at::Tensor gradient = torch::randn(ours.sizes()).to(ours.options());
  const auto expected = torch::autograd::grad({separate}, inputs, {gradient});
  for (int repeat = 0; repeat < 2; ++repeat) {
    const auto gradients = torch::autograd::grad({ours}, inputs, {gradient}, /*retain_graph=*/true);
    for (size_t k = 0; k < inputs.size(); ++k) {
      CAPTURE(k, inputs[k].sizes());
      CHECK(gradients[k].scalar_type() == inputs[k].scalar_type());
      if (types.uses_autocast() && inputs[k].dim() == 2) {
        CHECK(worst_relative(gradients[k], expected[k]) < types.tolerance());
        CHECK(!gradients[k].equal(gradients[k].to(types.product).to(types.stream)));
      } else {
        CHECK(gradients[k].equal(expected[k]));
      }
    }
  }
  CHECK_THROWS_AS(torch::autograd::grad({ours}, inputs, {gradient}, true, /*create_graph=*/true),
                  c10::NotImplementedError);
}

inline void check_fused_gpu_blocks(at::Device device) {
  for (const Types& types : kTypes) {
    for (const bool has_bias : {false, true}) {
      for (const bool is_transposed : {false, true}) {
        for (const size_t frozen : {0, 6}) check_fused_gpu_block(device, types, has_bias, is_transposed, frozen);
      }
    }
  }
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
