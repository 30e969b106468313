#include "nn/gpu/fused_gpu_block.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/sum.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <vector>

#include "core/tensors/optional_tensor.h"
#include "core/tensors/tensor_lists.h"
#include "nn/cpu/block_matrix.h"
#include "nn/cpu/float_product.h"

namespace trainkit::detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Note [Nodes of a block on a GPU]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// BeforeAttention computes the first norm and the queries, keys and values; AfterAttention the output projection, the
// second norm and the MLP. Attention between them is LibTorch's, with its own choice of kernel. Both nodes compute what
// autograd would compute for the separate operations, with the same calls, so the bits are the same except for those of
// gradients of weights; they keep the same tensors. Inside a node neither autograd nor autocast is called (Plain): the
// products have the dtype of the cast weights.
//
// Under autocast a small model spends much of its step on the launches of casts. So the weights of a block are cast by
// one kernel (Matrices), the gradients of weights leave their products in float32, and the last sum of a block is
// computed by the next layer norm, whose backward gives its gradient in both dtypes (ResidualStream).

/// Calls LibTorch's kernels without autograd, also for views, and without autocast.
struct Plain {
  at::AutoDispatchBelowADInplaceOrView without_autograd;
  c10::impl::ExcludeDispatchKeyGuard without_autocast{c10::autocast_dispatch_keyset};
};

at::Tensor value_of(const OptionalTensor& tensor) { return tensor.value_or(at::Tensor()); }

void refuse_second_derivative() {
  TORCH_CHECK_NOT_IMPLEMENTED(!c10::GradMode::is_enabled(),
                              "a fused block has no second derivative; use set_fused_blocks(false)");
}

/// Records which arguments require a gradient: backward sees only saved tensors.
void keep_wanted(AutogradContext* context, const std::vector<OptionalTensor>& arguments) {
  std::vector<bool> wanted;
  wanted.reserve(arguments.size());
  for (const OptionalTensor& argument : arguments) wanted.push_back(argument && argument->requires_grad());
  context->saved_data["wanted"] = wanted;
}

/// The gradients of a product out = x weight + bias, for those that are wanted.
struct ProductGradients {
  const variable_list& saved;
  c10::List<bool> wanted;
  bool is_transposed;
  at::ScalarType type;  // of the weights
  variable_list& result;

  /// `weight` and `bias` are positions of arguments, `matrix` of a saved tensor; no bias: it is added elsewhere.
  /// Returns the gradient of x.
  at::Tensor operator()(size_t weight, std::optional<size_t> bias, size_t matrix, const at::Tensor& input,
                        const at::Tensor& gradient) const {
    const BlockMatrix by{saved[matrix], is_transposed};
    if (wanted[weight]) result[weight] = weight_gradient(input, gradient);
    if (bias && wanted[*bias]) result[*bias] = at::sum(gradient, 0).to(type);
    return by.input_gradient(gradient);
  }

 private:
  at::Tensor weight_gradient(const at::Tensor& input, const at::Tensor& gradient) const {
    const auto [a, b] = BlockMatrix::weight_factors(input, gradient, is_transposed);
    if (type == a.scalar_type()) return at::mm(a, b);
    at::Tensor out = at::empty({a.size(0), b.size(1)}, a.options().dtype(type));
    float_product_out(out, a, b, /*adds=*/false);
    return out;
  }
};

/// The weights of a block's products in the dtype of the products, without a history.
struct Matrices {
  at::Tensor qkv, proj, fc, out;

  Matrices(const BlockWeights& weights, at::ScalarType product)
      : qkv(weights.qkv.detach()), proj(weights.proj.detach()), fc(weights.fc.detach()), out(weights.out.detach()) {
    if (qkv.scalar_type() == product) return;
    const c10::AutoGradMode no_grad(false);
    const std::vector<at::Tensor> cast = cast_together({qkv, proj, fc, out}, product);
    qkv = cast[0], proj = cast[1], fc = cast[2], out = cast[3];
  }
};

struct BeforeAttention : torch::autograd::Function<BeforeAttention> {
  enum Argument { kX, kBranch, kLn, kLnBias, kQkv, kQkvBias };
  static constexpr size_t kArguments = kQkvBias + 5;  // plus the cast weight and numbers
  enum Saved { kStream, kMean, kInverseStd, kNormed, kWeightLn, kWeightQkv };

  /// Returns x + branch, queries, keys and values.
  static variable_list forward(AutogradContext* context, const at::Tensor& x, const OptionalTensor& branch,
                               const at::Tensor& ln, const OptionalTensor& ln_bias, const at::Tensor& qkv,
                               const OptionalTensor& qkv_bias, const at::Tensor& cast_qkv, int64_t n_heads, double eps,
                               bool is_transposed) {
    keep_wanted(context, {x, branch, ln, ln_bias, qkv, qkv_bias});
    const Plain plain;
    const int64_t batch = x.size(0), time = x.size(1), width = x.size(2);
    const NormResult norm = run_layer_norm(x, value_of(branch), {ln, value_of(ln_bias), eps}, cast_qkv.scalar_type());
    const BlockMatrix by_qkv{cast_qkv, is_transposed};
    const at::Tensor normed = norm.normed.view({batch * time, width});
    const at::Tensor heads =
        by_qkv.of(normed, value_of(qkv_bias)).view({batch, time, 3, n_heads, width / n_heads}).transpose(1, 3);
    context->saved_data["transposed"] = is_transposed;
    context->saved_data["branch"] = branch.has_value();
    context->save_for_backward({norm.sum, norm.mean, norm.inverse_std, normed, ln, cast_qkv});
    return {norm.sum, heads.select(2, 0), heads.select(2, 1), heads.select(2, 2)};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    refuse_second_derivative();
    const auto saved = context->get_saved_variables();
    const auto wanted = context->saved_data["wanted"].toBoolList();
    const Plain plain;
    const at::Tensor &sum = saved[kStream], &normed = saved[kNormed];
    variable_list result(kArguments);
    std::vector<at::Tensor> parts;  // each (B, T, C)
    for (size_t i = 1; i < 4; ++i) parts.push_back(gradients[i].transpose(1, 2).flatten(2));
    const at::Tensor d_heads = at::cat(parts, 2).view({normed.size(0), -1});
    const ProductGradients product{saved, wanted, context->saved_data["transposed"].toBool(), sum.scalar_type(),
                                   result};
    const at::Tensor d_normed = product(kQkv, kQkvBias, kWeightQkv, normed, d_heads);
    const NormGradients norm =
        run_layer_norm_backward(d_normed, gradients[0].contiguous(), {sum, {}, saved[kMean], saved[kInverseStd]},
                                saved[kWeightLn], context->saved_data["branch"].toBool(), wanted[kLnBias]);
    result[kX] = norm.sum;
    if (norm.branch.defined()) result[kBranch] = norm.branch.view(sum.sizes());
    result[kLn] = norm.weight;
    result[kLnBias] = norm.bias;
    return result;
  }
};

struct AfterAttention : torch::autograd::Function<AfterAttention> {
  enum Argument { kStream, kMixed, kProj, kProjBias, kLn, kLnBias, kFc, kFcBias, kOut, kOutBias };
  static constexpr size_t kArguments = kOutBias + 7;  // plus the cast weights and numbers
  enum Saved {
    kMerged,
    kSum,
    kMean,
    kInverseStd,
    kNormed,
    kInner,
    kActivated,
    kWeightProj,
    kWeightLn,
    kWeightFc,
    kBiasFc,
    kWeightOut
  };

  /// Returns the sum after attention and the output of the MLP.
  // clang-format off
  static variable_list forward(AutogradContext* context, const at::Tensor& stream, const at::Tensor& mixed,
                               const at::Tensor& proj, const OptionalTensor& proj_bias,
                               const at::Tensor& ln, const OptionalTensor& ln_bias,
                               const at::Tensor& fc, const OptionalTensor& fc_bias,
                               const at::Tensor& out, const OptionalTensor& out_bias,
                               const at::Tensor& cast_proj, const at::Tensor& cast_fc, const at::Tensor& cast_out,
                               double eps, bool by_tanh, bool is_transposed) {
    // clang-format on
    keep_wanted(context, {stream, mixed, proj, proj_bias, ln, ln_bias, fc, fc_bias, out, out_bias});
    const Plain plain;
    const int64_t width = stream.size(2), rows = stream.size(0) * stream.size(1);
    const BlockMatrix by_proj{cast_proj, is_transposed}, by_fc{cast_fc, is_transposed}, by_out{cast_out, is_transposed};
    const at::Tensor merged = mixed.transpose(1, 2).reshape({rows, width});
    const NormResult norm = run_layer_norm(stream.view({rows, width}), by_proj.of(merged, value_of(proj_bias)),
                                           {ln, value_of(ln_bias), eps}, cast_proj.scalar_type());
    const at::Tensor inner = by_fc.of(norm.normed);
    const at::Tensor activated =
        fc_bias ? run_bias_gelu(inner, *fc_bias, by_tanh) : at::gelu(inner, by_tanh ? "tanh" : "none");
    context->saved_data["by_tanh"] = by_tanh;
    context->saved_data["transposed"] = is_transposed;
    context->saved_data["heads"] = mixed.size(1);
    context->save_for_backward({merged, norm.sum, norm.mean, norm.inverse_std, norm.normed, inner, activated,
                                by_proj.weight, ln, by_fc.weight, value_of(fc_bias), by_out.weight});
    return {norm.sum.view(stream.sizes()), by_out.of(activated, value_of(out_bias)).view(stream.sizes())};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    refuse_second_derivative();
    const auto saved = context->get_saved_variables();
    const auto wanted = context->saved_data["wanted"].toBoolList();
    const bool by_tanh = context->saved_data["by_tanh"].toBool();
    const int64_t heads = context->saved_data["heads"].toInt();
    const Plain plain;
    variable_list result(kArguments);
    const at::Tensor &sum = saved[kSum], &inner = saved[kInner];
    const ProductGradients product{saved, wanted, context->saved_data["transposed"].toBool(), sum.scalar_type(),
                                   result};
    const int64_t batch = gradients[0].size(0), time = gradients[0].size(1), width = gradients[0].size(2);
    const at::Tensor d_sum = gradients[0].contiguous().view({batch * time, width}),
                     d_out = gradients[1].contiguous().view({batch * time, width});
    at::Tensor d_inner = product(kOut, kOutBias, kWeightOut, saved[kActivated], d_out);
    if (saved[kBiasFc].defined()) {
      GeluGradients gelu = run_bias_gelu_backward(d_inner, inner, saved[kBiasFc], by_tanh);
      d_inner = gelu.x;
      result[kFcBias] = gelu.bias;
    } else {
      d_inner = at::gelu_backward(d_inner, inner, by_tanh ? "tanh" : "none");
    }
    const at::Tensor d_normed = product(kFc, std::nullopt, kWeightFc, saved[kNormed], d_inner);
    NormGradients norm =
        run_layer_norm_backward(d_normed, d_sum, {sum, {}, saved[kMean], saved[kInverseStd]}, saved[kWeightLn],
                                /*has_branch=*/true, wanted[kLnBias]);
    result[kStream] = norm.sum.view({batch, time, width});
    result[kLn] = norm.weight;
    result[kLnBias] = norm.bias;
    result[kMixed] = product(kProj, kProjBias, kWeightProj, saved[kMerged], norm.branch)
                         .view({batch, time, heads, width / heads})
                         .transpose(1, 2);
    return result;
  }
};

}  // namespace

bool has_fused_gpu_block(const ResidualStream& stream, const BlockWeights& weights, const BlockOptions& options) {
  const at::Tensor &x = stream.sum, &branch = stream.branch;
  if (x.dim() != 3 || x.numel() == 0 || x.size(2) % options.n_heads != 0) return false;
  const at::ScalarType product = product_type(x);
  if (!has_gpu_norm(x, {weights.ln_1, weights.ln_1_bias, options.eps}, product) ||
      !has_gpu_norm(x, {weights.ln_2, weights.ln_2_bias, options.eps}, product)) {
    return false;
  }
  if (branch.defined() && (branch.sizes() != x.sizes() || branch.scalar_type() != product)) return false;
  bool needs_gradient = x.requires_grad() || weights.ln_1.requires_grad() || weights.ln_2.requires_grad();
  for (const at::Tensor* weight : {&weights.qkv, &weights.proj, &weights.fc, &weights.out, &weights.qkv_bias,
                                   &weights.proj_bias, &weights.fc_bias, &weights.out_bias}) {
    if (!weight->defined()) continue;
    needs_gradient |= weight->requires_grad();
    if (weight->device() != x.device() || weight->scalar_type() != x.scalar_type() || !weight->is_contiguous()) {
      return false;
    }
  }
  return needs_gradient && c10::GradMode::is_enabled();
}

ResidualStream fused_gpu_block(
    ResidualStream x, const BlockWeights& weights, const BlockOptions& options,
    c10::function_ref<at::Tensor(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value)> attention) {
  const Matrices cast(weights, product_type(x.sum));
  const bool by_tanh = options.activation == Activation::kGeluTanh;
  const variable_list parts = BeforeAttention::apply(
      x.sum, optional(x.branch), weights.ln_1, optional(weights.ln_1_bias), weights.qkv, optional(weights.qkv_bias),
      cast.qkv, options.n_heads, options.eps, options.weights_are_transposed);
  x = {};
  const at::Tensor mixed = attention(parts[1], parts[2], parts[3]);
  const variable_list outputs = AfterAttention::apply(
      parts[0], mixed, weights.proj, optional(weights.proj_bias), weights.ln_2, optional(weights.ln_2_bias), weights.fc,
      optional(weights.fc_bias), weights.out, optional(weights.out_bias), cast.proj, cast.fc, cast.out, options.eps,
      by_tanh, options.weights_are_transposed);
  return {outputs[0], outputs[1]};
}

}  // namespace trainkit::detail
