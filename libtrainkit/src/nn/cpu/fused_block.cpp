#include "nn/cpu/fused_block.h"

#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <vector>

#include "core/device/gpu_operations.h"
#include "core/tensors/optional_tensor.h"
#include "nn/cpu/attention_kernel.h"
#include "nn/cpu/block_matrix.h"

namespace trainkit::detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Returns the dtype of matrix products.
at::ScalarType product_dtype() {
  return at::autocast::is_autocast_enabled(at::kCPU) ? at::autocast::get_autocast_dtype(at::kCPU) : at::kFloat;
}

/// Disables autocast, because dtypes are chosen here.
using NoAutocast = c10::impl::ExcludeDispatchKeyGuard;

// Note [Fused block]
// ~~~~~~~~~~~~~~~~~~
// The whole block is one autograd node, so that intermediate tensors can be chosen for backward: the inputs of the
// matrix products, the statistics of the norms, the residual after attention and log-sum-exp of attention. Not kept are
// the outputs of the projections and attention's weights, which backward does not need or recomputes.
//
// The order of the saved tensors is `Saved`, the order of the arguments `Argument`; both must match save_for_backward
// and forward's signature. Whether an argument requires a gradient is recorded in forward, because
// backward sees only the saved tensors. `kind` (float32 or autocast's bfloat16) is an argument, because
// autocast is disabled inside the node.

struct FusedBlock : torch::autograd::Function<FusedBlock> {
  /// Positions of the differentiable arguments.
  enum Argument { kX, kLn1, kLn1Bias, kQkv, kQkvBias, kProj, kProjBias, kLn2, kLn2Bias, kFc, kFcBias, kOut, kOutBias };
  static constexpr size_t kArguments = kOutBias + 5;  // plus the masks, the options and the dtype of products

  /// Positions of the saved tensors.
  enum Saved {
    kStream,
    kMean1,
    kInverseStd1,
    kNormed1,
    kHeads,
    kMixed,
    kLogsumexp,
    kAttended,
    kMean2,
    kInverseStd2,
    kNormed2,
    kInner,
    kActivated,
    kMask,
    kPositions,
    kWeightLn1,
    kWeightQkv,
    kWeightProj,
    kWeightLn2,
    kWeightFc,
    kBiasFc,
    kWeightOut
  };

  // clang-format off
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& ln_1, const OptionalTensor& ln_1_bias,
                            const at::Tensor& qkv, const OptionalTensor& qkv_bias,
                            const at::Tensor& proj, const OptionalTensor& proj_bias,
                            const at::Tensor& ln_2, const OptionalTensor& ln_2_bias,
                            const at::Tensor& fc, const OptionalTensor& fc_bias,
                            const at::Tensor& out, const OptionalTensor& out_bias,
                            const OptionalTensor& key_mask, const OptionalTensor& positions,
                            const BlockOptions& options, at::ScalarType kind) {
    // clang-format on
    const NoAutocast no_autocast(c10::autocast_dispatch_keyset);
    const auto value = [](const OptionalTensor& tensor) { return tensor.value_or(at::Tensor()); };
    const auto matrix = [&](const at::Tensor& weight) {
      return BlockMatrix{weight.to(kind), options.weights_are_transposed};
    };
    const int64_t batch = x.size(0), time = x.size(1), width = x.size(2), rows = batch * time;
    const BlockMatrix by_qkv = matrix(qkv), by_proj = matrix(proj), by_fc = matrix(fc), by_out = matrix(out);

    const at::Tensor stream = x.view({rows, width});
    const Normalised norm_1 = add_layer_norm(stream, {}, {}, ln_1, value(ln_1_bias), options.eps, kind);
    const at::Tensor heads = by_qkv.of(norm_1.out, value(qkv_bias)).view({batch, time, 3 * width});
    const Attended attended =
        causal_attention(heads, {value(key_mask), value(positions)}, {options.n_heads, options.scale});
    const at::Tensor mixed = attended.mixed.view({rows, width});
    const Normalised norm_2 =
        add_layer_norm(stream, by_proj.of(mixed), value(proj_bias), ln_2, value(ln_2_bias), options.eps, kind);
    const at::Tensor inner = by_fc.of(norm_2.out);
    const at::Tensor activated = bias_activation(inner, value(fc_bias), options.activation);

    std::vector<bool> wanted;
    for (const OptionalTensor& argument :
         {OptionalTensor(x), OptionalTensor(ln_1), ln_1_bias, OptionalTensor(qkv), qkv_bias, OptionalTensor(proj),
          proj_bias, OptionalTensor(ln_2), ln_2_bias, OptionalTensor(fc), fc_bias, OptionalTensor(out), out_bias}) {
      wanted.push_back(argument && argument->requires_grad());
    }
    context->saved_data["wanted"] = wanted;
    context->saved_data["options"] =
        std::vector<int64_t>{options.n_heads, static_cast<int64_t>(options.activation), options.weights_are_transposed};
    context->saved_data["scale"] = options.scale;
    // In the order of `Saved`; see Note [Fused block].
    context->save_for_backward(
        {stream,           norm_1.mean, norm_1.inverse_std, norm_1.out,     heads, mixed,        attended.logsumexp,
         norm_2.sum,       norm_2.mean, norm_2.inverse_std, norm_2.out,     inner, activated,    value(key_mask),
         value(positions), ln_1,        by_qkv.weight,      by_proj.weight, ln_2,  by_fc.weight, value(fc_bias),
         by_out.weight});
    return add_residual(norm_2.sum, by_out.of(activated), value(out_bias)).view(x.sizes());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    TORCH_CHECK_NOT_IMPLEMENTED(!c10::GradMode::is_enabled(),
                                "a fused block has no second derivative; use set_fused_blocks(false)");
    const NoAutocast no_autocast(c10::autocast_dispatch_keyset);
    const auto saved = context->get_saved_variables();
    const auto wanted = context->saved_data["wanted"].toBoolList();
    const auto options = context->saved_data["options"].toIntVector();
    const auto matrix = [&](Saved weight) { return BlockMatrix{saved[weight], options[2] != 0}; };
    const at::ScalarType kind = saved[kHeads].scalar_type();
    const int64_t batch = saved[kHeads].size(0), time = saved[kHeads].size(1);
    const int64_t rows = saved[kStream].size(0), width = saved[kStream].size(1);
    variable_list result(kArguments);
    const auto weight_gradient = [&](Argument argument, Saved weight, Saved input, const at::Tensor& gradient) {
      if (wanted[argument]) result[argument] = matrix(weight).weight_gradient(saved[input], gradient);
    };
    const auto bias_gradient = [&](Argument argument, const at::Tensor& gradient) {
      if (wanted[argument]) result[argument] = sum_rows(gradient);
    };

    const at::Tensor d_y = gradients[0].to(at::kFloat).contiguous().view({rows, width}), d_down = d_y.to(kind);
    weight_gradient(kOut, kWeightOut, kActivated, d_down);
    bias_gradient(kOutBias, d_y);
    const BiasGradients inner = bias_activation_backward(matrix(kWeightOut).input_gradient(d_down), saved[kInner],
                                                         saved[kBiasFc], static_cast<Activation>(options[1]));
    result[kFcBias] = inner.bias;
    weight_gradient(kFc, kWeightFc, kNormed2, inner.x);
    const LayerNormGradients norm_2 = layer_norm_backward(
        matrix(kWeightFc).input_gradient(inner.x), d_y,
        {saved[kAttended], saved[kNormed2], saved[kMean2], saved[kInverseStd2]}, saved[kWeightLn2], wanted[kLn2Bias]);
    result[kLn2] = norm_2.weight;
    result[kLn2Bias] = norm_2.bias;

    const at::Tensor d_attended = norm_2.sum.to(kind);
    weight_gradient(kProj, kWeightProj, kMixed, d_attended);
    bias_gradient(kProjBias, norm_2.sum);
    const at::Tensor d_heads =
        causal_attention_backward(matrix(kWeightProj).input_gradient(d_attended).view({batch, time, width}),
                                  saved[kHeads], {saved[kMask], saved[kPositions]}, {saved[kMixed], saved[kLogsumexp]},
                                  {options[0], context->saved_data["scale"].toDouble()})
            .view({rows, 3 * width});
    weight_gradient(kQkv, kWeightQkv, kNormed1, d_heads);
    bias_gradient(kQkvBias, d_heads);
    const LayerNormGradients norm_1 = layer_norm_backward(
        matrix(kWeightQkv).input_gradient(d_heads), norm_2.sum,
        {saved[kStream], saved[kNormed1], saved[kMean1], saved[kInverseStd1]}, saved[kWeightLn1], wanted[kLn1Bias]);
    result[kLn1] = norm_1.weight;
    result[kLn1Bias] = norm_1.bias;
    result[kX] = norm_1.sum.view({batch, time, width});
    return result;
  }
};

}  // namespace

bool has_fused_block(const at::Tensor& x, const BlockWeights& weights, const BlockOptions& options) {
  const auto is_plain = [](const at::Tensor& tensor) {
    return tensor.is_cpu() && tensor.scalar_type() == at::kFloat && tensor.is_contiguous();
  };
  if (GpuOperations::wanted() || x.dim() != 3 || x.numel() == 0 || !is_plain(x)) return false;
  if (product_dtype() != at::kFloat && product_dtype() != at::kBFloat16) return false;
  for (const at::Tensor* weight :
       {&weights.ln_1, &weights.qkv, &weights.proj, &weights.ln_2, &weights.fc, &weights.out, &weights.ln_1_bias,
        &weights.qkv_bias, &weights.proj_bias, &weights.ln_2_bias, &weights.fc_bias, &weights.out_bias}) {
    if (weight->defined() && !is_plain(*weight)) return false;
  }
  const int64_t inner = weights.fc.size(options.weights_are_transposed ? 1 : 0);
  return has_causal_attention(x.size(1), x.size(2), options.n_heads) && inner % 16 == 0;
}

at::Tensor fused_block(const at::Tensor& x, const BlockWeights& weights, const AttentionMask& mask,
                       const BlockOptions& options) {
  return FusedBlock::apply(x, weights.ln_1, optional(weights.ln_1_bias), weights.qkv, optional(weights.qkv_bias),
                           weights.proj, optional(weights.proj_bias), weights.ln_2, optional(weights.ln_2_bias),
                           weights.fc, optional(weights.fc_bias), weights.out, optional(weights.out_bias),
                           optional(mask.key_mask), optional(mask.positions), options, product_dtype());
}

}  // namespace trainkit::detail
