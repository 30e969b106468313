#include "nn/fused_gpu_block.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/sum.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <vector>

#include "nn/block_matrix.h"
#include "nn/fused_ops.h"
#include "nn/optional_tensor.h"

namespace trainkit::detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Note [Nodes of a block on a GPU]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// BeforeAttention computes the first norm and the queries, keys and values; AfterAttention the output projection, the
// second norm and the MLP. Attention between them is LibTorch's, with its own choice of kernel. Both nodes compute what
// autograd would compute for the separate operations, with the same calls, so the bits are the same; they keep the same
// tensors. Inside a node neither autograd nor autocast is called (Plain). The product's dtype is an argument, as
// autocast is off inside.

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
    if (wanted[weight]) result[weight] = by.weight_gradient(input, gradient).to(type);
    if (bias && wanted[*bias]) result[*bias] = at::sum(gradient, 0).to(type);
    return by.input_gradient(gradient);
  }
};

struct BeforeAttention : torch::autograd::Function<BeforeAttention> {
  enum Argument { kX, kLn, kLnBias, kQkv, kQkvBias };
  static constexpr size_t kArguments = kQkvBias + 5;  // plus numbers
  enum Saved { kStream, kMean, kInverseStd, kNormed, kWeightLn, kWeightQkv };

  /// Returns x, queries, keys and values.
  static variable_list forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& ln,
                               const OptionalTensor& ln_bias, const at::Tensor& qkv, const OptionalTensor& qkv_bias,
                               int64_t n_heads, double eps, bool is_transposed, at::ScalarType product) {
    keep_wanted(context, {x, ln, ln_bias, qkv, qkv_bias});
    const Plain plain;
    const int64_t batch = x.size(0), time = x.size(1), width = x.size(2);
    const NormResult norm = run_layer_norm(x, {}, {ln, value_of(ln_bias), eps}, product);
    const BlockMatrix by_qkv{qkv.to(product), is_transposed};
    const at::Tensor normed = norm.normed.view({batch * time, width});
    const at::Tensor heads =
        by_qkv.of(normed, value_of(qkv_bias)).view({batch, time, 3, n_heads, width / n_heads}).transpose(1, 3);
    context->saved_data["transposed"] = is_transposed;
    context->save_for_backward({x, norm.mean, norm.inverse_std, normed, ln, by_qkv.weight});
    return {x, heads.select(2, 0), heads.select(2, 1), heads.select(2, 2)};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    refuse_second_derivative();
    const auto saved = context->get_saved_variables();
    const auto wanted = context->saved_data["wanted"].toBoolList();
    const Plain plain;
    const at::Tensor &x = saved[kStream], &normed = saved[kNormed];
    variable_list result(kArguments);
    std::vector<at::Tensor> parts;  // each (B, T, C)
    for (size_t i = 1; i < 4; ++i) parts.push_back(gradients[i].transpose(1, 2).flatten(2));
    const at::Tensor d_heads = at::cat(parts, 2).view({normed.size(0), -1});
    const ProductGradients product{saved, wanted, context->saved_data["transposed"].toBool(), x.scalar_type(), result};
    const at::Tensor d_normed = product(kQkv, kQkvBias, kWeightQkv, normed, d_heads);
    const NormGradients norm =
        run_layer_norm_backward(d_normed, gradients[0].contiguous(), {x, {}, saved[kMean], saved[kInverseStd]},
                                saved[kWeightLn], /*has_branch=*/false, wanted[kLnBias]);
    result[kX] = norm.sum;
    result[kLn] = norm.weight;
    result[kLnBias] = norm.bias;
    return result;
  }
};

struct AfterAttention : torch::autograd::Function<AfterAttention> {
  enum Argument { kStream, kMixed, kProj, kProjBias, kLn, kLnBias, kFc, kFcBias, kOut, kOutBias };
  static constexpr size_t kArguments = kOutBias + 5;  // plus numbers
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

  // clang-format off
  static at::Tensor forward(AutogradContext* context, const at::Tensor& stream, const at::Tensor& mixed,
                            const at::Tensor& proj, const OptionalTensor& proj_bias,
                            const at::Tensor& ln, const OptionalTensor& ln_bias,
                            const at::Tensor& fc, const OptionalTensor& fc_bias,
                            const at::Tensor& out, const OptionalTensor& out_bias,
                            double eps, bool by_tanh, bool is_transposed, at::ScalarType product) {
    // clang-format on
    keep_wanted(context, {stream, mixed, proj, proj_bias, ln, ln_bias, fc, fc_bias, out, out_bias});
    const Plain plain;
    const int64_t width = stream.size(2), rows = stream.size(0) * stream.size(1);
    const BlockMatrix by_proj{proj.to(product), is_transposed}, by_fc{fc.to(product), is_transposed},
        by_out{out.to(product), is_transposed};
    const at::Tensor merged = mixed.transpose(1, 2).reshape({rows, width});
    const NormResult norm = run_layer_norm(stream.view({rows, width}), by_proj.of(merged, value_of(proj_bias)),
                                           {ln, value_of(ln_bias), eps}, product);
    const at::Tensor inner = by_fc.of(norm.normed);
    const at::Tensor activated =
        fc_bias ? run_bias_gelu(inner, *fc_bias, by_tanh) : at::gelu(inner, by_tanh ? "tanh" : "none");
    context->saved_data["by_tanh"] = by_tanh;
    context->saved_data["transposed"] = is_transposed;
    context->saved_data["heads"] = mixed.size(1);
    context->save_for_backward({merged, norm.sum, norm.mean, norm.inverse_std, norm.normed, inner, activated,
                                by_proj.weight, ln, by_fc.weight, value_of(fc_bias), by_out.weight});
    return at::add(norm.sum, by_out.of(activated, value_of(out_bias))).view(stream.sizes());
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
    const at::Tensor d_y = gradients[0].contiguous();
    const int64_t batch = d_y.size(0), time = d_y.size(1), width = d_y.size(2);
    const at::Tensor d_out = d_y.view({batch * time, width});
    at::Tensor d_inner = product(kOut, kOutBias, kWeightOut, saved[kActivated], d_out.to(inner.scalar_type()));
    if (saved[kBiasFc].defined()) {
      GeluGradients gelu = run_bias_gelu_backward(d_inner, inner, saved[kBiasFc], by_tanh);
      d_inner = gelu.x;
      result[kFcBias] = gelu.bias;
    } else {
      d_inner = at::gelu_backward(d_inner, inner, by_tanh ? "tanh" : "none");
    }
    const at::Tensor d_normed = product(kFc, std::nullopt, kWeightFc, saved[kNormed], d_inner);
    NormGradients norm =
        run_layer_norm_backward(d_normed, d_out, {sum, {}, saved[kMean], saved[kInverseStd]}, saved[kWeightLn],
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

bool has_fused_gpu_block(const at::Tensor& x, const BlockWeights& weights, const BlockOptions& options) {
  if (x.dim() != 3 || x.numel() == 0 || x.size(2) % options.n_heads != 0) return false;
  const at::ScalarType product = product_type(x);
  if (!has_gpu_norm(x, {weights.ln_1, weights.ln_1_bias, options.eps}, product) ||
      !has_gpu_norm(x, {weights.ln_2, weights.ln_2_bias, options.eps}, product)) {
    return false;
  }
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

at::Tensor fused_gpu_block(
    const at::Tensor& x, const BlockWeights& weights, const BlockOptions& options,
    c10::function_ref<at::Tensor(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value)> attention) {
  const at::ScalarType product = product_type(x);
  const bool by_tanh = options.activation == Activation::kGeluTanh;
  const variable_list parts =
      BeforeAttention::apply(x, weights.ln_1, optional(weights.ln_1_bias), weights.qkv, optional(weights.qkv_bias),
                             options.n_heads, options.eps, options.weights_are_transposed, product);
  const at::Tensor mixed = attention(parts[1], parts[2], parts[3]);
  return AfterAttention::apply(parts[0], mixed, weights.proj, optional(weights.proj_bias), weights.ln_2,
                               optional(weights.ln_2_bias), weights.fc, optional(weights.fc_bias), weights.out,
                               optional(weights.out_bias), options.eps, by_tanh, options.weights_are_transposed,
                               product);
}

}  // namespace trainkit::detail
