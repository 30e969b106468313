#include "nn/gpu/fused_ops.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <vector>

#include "core/device/gpu_kernel_support.h"
#include "core/device/gpu_operations.h"
#include "core/tensors/optional_tensor.h"
#include "core/tensors/recorded.h"
#include "nn/gpu/run_kernel.h"

namespace trainkit::detail {

static std::vector<at::Tensor> tensors_of(const ResidualNorm& norm) { return {norm.sum, norm.normed}; }

at::ScalarType product_type(const at::Tensor& x) {
  const at::DeviceType device = x.device().type();
  return at::autocast::is_autocast_enabled(device) ? at::autocast::get_autocast_dtype(device) : x.scalar_type();
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Disables autocast, because dtypes are chosen here.
using NoAutocast = c10::impl::ExcludeDispatchKeyGuard;

/// @param instead LibTorch's function, which has one.
void refuse_second_derivative(const char* name, const char* instead) {
  TORCH_CHECK_NOT_IMPLEMENTED(!c10::GradMode::is_enabled(), name,
                              " on a GPU has no second derivative (create_graph); use ", instead);
}

bool is_vector_for(const at::Tensor& vector, const at::Tensor& x, at::ScalarType type) {
  return vector.dim() == 1 && vector.size(0) == x.size(-1) && vector.is_contiguous() && vector.scalar_type() == type &&
         vector.device() == x.device();
}

}  // namespace

NormResult run_layer_norm(const at::Tensor& x, const at::Tensor& branch, const NormWeights& norm,
                          at::ScalarType product) {
  const int64_t width = x.size(-1), rows = x.numel() / width;
  const at::Tensor added = branch.defined() ? branch.contiguous() : branch;
  const at::Tensor sum = branch.defined() ? at::empty_like(x) : x;
  const at::Tensor normed = at::empty(x.sizes(), x.options().dtype(product));
  const at::Tensor mean = at::empty({rows}, x.options().dtype(at::kFloat)), inverse_std = at::empty_like(mean);
  const ResidualNorm outputs = recorded("trainkit::layer_norm", {x, added, norm.weight}, [&] {
    run_on(x.device(),
           NormArguments{.rows = rows,
                         .width = width,
                         .x = data_of(x),
                         .added = data_of(added),
                         .weight = data_of(norm.weight),
                         .bias = data_of(norm.bias),
                         .eps = static_cast<float>(norm.eps),
                         .sum = branch.defined() ? writable(sum) : nullptr,
                         .out = writable(normed),
                         .mean = floats(mean),
                         .inverse_std = floats(inverse_std)},
           numbers_of(x, normed));
    return ResidualNorm{sum, normed};
  });
  return {outputs.sum, outputs.normed, mean, inverse_std};
}

NormGradients run_layer_norm_backward(const at::Tensor& gradient, const at::Tensor& d_residual, const NormResult& norm,
                                      const at::Tensor& weight, bool has_branch, bool has_bias) {
  const at::Tensor &sum = norm.sum, d_out = gradient.contiguous();
  const int64_t width = sum.size(-1), rows = sum.numel() / width;
  at::Tensor d_sum = at::empty_like(sum);
  const at::Tensor d_weight = at::empty_like(weight);
  const at::Tensor d_bias = has_bias ? at::empty_like(weight) : at::Tensor();
  const bool is_wider = has_branch && d_out.scalar_type() != sum.scalar_type();
  const at::Tensor d_added = is_wider ? at::empty_like(d_out) : at::Tensor();
  const at::Tensor parts = at::empty({most_parts(width), has_bias ? 2 : 1, width}, norm.mean.options());
  recorded("trainkit::layer_norm_backward", {d_out, sum, weight}, [&] {
    run_on(sum.device(),
           NormGradientArguments{.rows = rows,
                                 .width = width,
                                 .d_out = data_of(d_out),
                                 .d_residual = data_of(d_residual),
                                 .sum = data_of(sum),
                                 .weight = data_of(weight),
                                 .mean = floats(norm.mean),
                                 .inverse_std = floats(norm.inverse_std),
                                 .d_sum = writable(d_sum),
                                 .d_added = writable(d_added),
                                 .parts = floats(parts),
                                 .d_weight = writable(d_weight),
                                 .d_bias = writable(d_bias)},
           numbers_of(sum, d_out));
    return d_sum;
  });
  return {d_sum, is_wider ? d_added : has_branch ? d_sum : at::Tensor(), d_weight, d_bias};
}

at::Tensor run_bias_gelu(const at::Tensor& x, const at::Tensor& bias, bool by_tanh) {
  at::Tensor out = at::empty_like(x);
  return recorded("trainkit::bias_activation", {x, bias}, [&] {
    run_on(x.device(),
           GeluArguments{.rows = x.numel() / x.size(-1),
                         .width = x.size(-1),
                         .by_tanh = by_tanh,
                         .x = data_of(x),
                         .bias = data_of(bias),
                         .out = writable(out)},
           numbers_of(bias, x));
    return out;
  });
}

GeluGradients run_bias_gelu_backward(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& bias,
                                     bool by_tanh) {
  const at::Tensor d_out = gradient.contiguous(), d_bias = at::empty_like(bias);
  at::Tensor d_x = at::empty_like(x);
  const int64_t width = x.size(-1), rows = x.numel() / width;
  const at::Tensor parts = at::empty({most_parts(width), width}, bias.options().dtype(at::kFloat));
  recorded("trainkit::bias_activation_backward", {d_out, x}, [&] {
    run_on(x.device(),
           GeluGradientArguments{.rows = rows,
                                 .width = width,
                                 .by_tanh = by_tanh,
                                 .d_out = data_of(d_out),
                                 .x = data_of(x),
                                 .bias = data_of(bias),
                                 .d_x = writable(d_x),
                                 .parts = floats(parts),
                                 .d_bias = writable(d_bias)},
           numbers_of(bias, x));
    return d_x;
  });
  return {d_x, d_bias};
}

namespace {

struct NormFunction : torch::autograd::Function<NormFunction> {
  static variable_list forward(AutogradContext* context, const at::Tensor& x, const OptionalTensor& branch,
                               const at::Tensor& weight, const OptionalTensor& bias, double eps,
                               at::ScalarType product) {
    const NoAutocast no_autocast(c10::autocast_dispatch_keyset);
    const NormWeights norm{weight, bias.value_or(at::Tensor()), eps};
    const NormResult result = run_layer_norm(x, branch.value_or(at::Tensor()), norm, product);
    context->set_materialize_grads(false);
    context->saved_data["has_bias"] = bias.has_value();
    context->saved_data["has_branch"] = branch.has_value();
    context->save_for_backward({result.sum, weight, result.mean, result.inverse_std});
    return {result.sum, result.normed};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    refuse_second_derivative("layer_norm", "at::layer_norm");
    const NoAutocast no_autocast(c10::autocast_dispatch_keyset);
    const bool has_branch = context->saved_data["has_branch"].toBool();
    if (!gradients[1].defined()) {
      return {gradients[0], has_branch ? gradients[0] : at::Tensor(), {}, {}, {}, {}};
    }
    const auto saved = context->get_saved_variables();
    const at::Tensor d_residual = gradients[0].defined() ? gradients[0].contiguous() : at::Tensor();
    const NormGradients result =
        run_layer_norm_backward(gradients[1], d_residual, {saved[0], {}, saved[2], saved[3]}, saved[1], has_branch,
                                context->saved_data["has_bias"].toBool());
    return {result.sum, result.branch, result.weight, result.bias, {}, {}};
  }
};

struct GeluFunction : torch::autograd::Function<GeluFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& given, const at::Tensor& bias, bool by_tanh) {
    const NoAutocast no_autocast(c10::autocast_dispatch_keyset);
    const at::Tensor x = given.contiguous();
    context->saved_data["by_tanh"] = by_tanh;
    context->save_for_backward({x, bias});
    return run_bias_gelu(x, bias, by_tanh);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    refuse_second_derivative("gelu", "at::gelu");
    const NoAutocast no_autocast(c10::autocast_dispatch_keyset);
    const auto saved = context->get_saved_variables();
    const GeluGradients result =
        run_bias_gelu_backward(gradients[0], saved[0], saved[1], context->saved_data["by_tanh"].toBool());
    return {result.x, result.bias, {}};
  }
};

struct CrossEntropyFunction : torch::autograd::Function<CrossEntropyFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits, const at::Tensor& target,
                            int64_t ignore_index, at::ScalarType type) {
    const NoAutocast no_autocast(c10::autocast_dispatch_keyset);
    const int64_t rows = logits.size(0);
    at::Tensor loss = at::empty({}, logits.options().dtype(type));
    const at::Tensor log_sums = at::empty({rows, 2}, logits.options().dtype(at::kFloat)),
                     losses = at::empty({rows}, log_sums.options());
    const at::Tensor inverse_count = at::empty({}, log_sums.options());
    context->saved_data["ignore_index"] = ignore_index;
    context->save_for_backward({logits, target, log_sums, inverse_count});
    return recorded("trainkit::cross_entropy", {logits, target}, [&] {
      run_on(logits.device(),
             CrossEntropyArguments{.rows = rows,
                                   .classes = logits.size(1),
                                   .ignore_index = ignore_index,
                                   .logits = data_of(logits),
                                   .target = target.const_data_ptr<int64_t>(),
                                   .log_sums = floats(log_sums),
                                   .losses = floats(losses),
                                   .inverse_count = floats(inverse_count),
                                   .loss = writable(loss)},
             numbers_of(loss, logits));
      return loss;
    });
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    refuse_second_derivative("cross_entropy", "at::cross_entropy_loss");
    const NoAutocast no_autocast(c10::autocast_dispatch_keyset);
    const auto saved = context->get_saved_variables();
    const at::Tensor &logits = saved[0], &d_loss = gradients[0];
    at::Tensor d_logits = at::empty_like(logits);
    recorded("trainkit::cross_entropy_backward", {d_loss, logits}, [&] {
      run_on(logits.device(),
             CrossEntropyGradientArguments{.rows = logits.size(0),
                                           .classes = logits.size(1),
                                           .ignore_index = context->saved_data["ignore_index"].toInt(),
                                           .logits = data_of(logits),
                                           .target = saved[1].const_data_ptr<int64_t>(),
                                           .log_sums = floats(saved[2]),
                                           .inverse_count = floats(saved[3]),
                                           .d_loss = data_of(d_loss),
                                           .d_logits = writable(d_logits)},
             numbers_of(d_loss, logits));
      return d_logits;
    });
    return {d_logits, {}, {}, {}};
  }
};

bool has_norm(const at::Tensor& x, const at::Tensor& branch, const NormWeights& norm, at::ScalarType product) {
  return x.dim() > 0 && has_gpu_norm(x, norm, product) &&
         (!branch.defined() || (branch.sizes() == x.sizes() && branch.scalar_type() == product));
}

bool has_gelu(const at::Tensor& x, const at::Tensor& bias) {
  return runs_gpu_operations(x) && x.dim() > 0 && x.size(-1) > 0 && numbers_of(bias.scalar_type(), x.scalar_type()) &&
         is_vector_for(bias, x, bias.scalar_type());
}

}  // namespace

bool has_gpu_norm(const at::Tensor& x, const NormWeights& norm, at::ScalarType product) {
  return runs_gpu_operations(x) && x.size(-1) > 0 && x.is_contiguous() && numbers_of(x.scalar_type(), product) &&
         is_vector_for(norm.weight, x, x.scalar_type()) &&
         (!norm.bias.defined() || is_vector_for(norm.bias, x, x.scalar_type()));
}

bool runs_gpu_operations(const at::Tensor& x) {
#ifdef TRAINKIT_WITH_CUDA
  if (x.is_cuda()) return has_gpu_kernels(x.device());
#endif
  return x.is_cpu() && GpuOperations::wanted() && GpuOperations::has_kernels();
}

ResidualNorm residual_layer_norm(const at::Tensor& x, const at::Tensor& branch, const NormWeights& norm) {
  const at::ScalarType product = product_type(x);
  if (has_norm(x, branch, norm, product)) {
    const variable_list outputs =
        NormFunction::apply(x, optional(branch), norm.weight, optional(norm.bias), norm.eps, product);
    return {outputs[0], outputs[1]};
  }
  const at::Tensor sum = branch.defined() ? x + branch : x;
  return {sum, at::layer_norm(sum, norm.weight.sizes(), norm.weight, norm.bias, norm.eps)};
}

at::Tensor bias_gelu(const at::Tensor& x, const at::Tensor& bias, bool by_tanh) {
  if (!bias.defined()) return at::gelu(x, by_tanh ? "tanh" : "none");
  if (has_gelu(x, bias)) return GeluFunction::apply(x, bias, by_tanh);
  return at::gelu(x + bias.to(x.scalar_type()), by_tanh ? "tanh" : "none");
}

ResidualStream residual_block(ResidualStream x, const NormWeights& ln_1,
                              c10::function_ref<at::Tensor(const at::Tensor&)> attention, const NormWeights& ln_2,
                              c10::function_ref<at::Tensor(const at::Tensor&)> mlp) {
  const ResidualNorm before = residual_layer_norm(x.sum, x.branch, ln_1);
  x = {};
  const ResidualNorm between = residual_layer_norm(before.sum, attention(before.normed), ln_2);
  return {between.sum, mlp(between.normed)};
}

bool has_gpu_cross_entropy(const at::Tensor& logits, const at::Tensor& target) {
  return runs_gpu_operations(logits) && number_of(logits.scalar_type()) && logits.dim() == 2 && logits.size(1) > 0 &&
         logits.is_contiguous() && target.device() == logits.device() && target.scalar_type() == at::kLong &&
         target.dim() == 1 && target.size(0) == logits.size(0) && target.is_contiguous();
}

at::Tensor gpu_cross_entropy(const at::Tensor& logits, const at::Tensor& target, int64_t ignore_index) {
  const bool is_autocast = at::autocast::is_autocast_enabled(logits.device().type());
  return CrossEntropyFunction::apply(logits, target, ignore_index, is_autocast ? at::kFloat : logits.scalar_type());
}

}  // namespace trainkit::detail
