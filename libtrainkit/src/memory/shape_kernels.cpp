#include "memory/shape_kernels.h"

#include <ATen/ExpandUtils.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/native/utils/ParamUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/result_type.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>
#include <vector>

#include "core/device/gpu_operations.h"

namespace trainkit::detail {
namespace {

using OptionalTensor = std::optional<at::Tensor>;
using Sizes = at::IntArrayRef;
using Two = std::tuple<at::Tensor, at::Tensor>;
using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using Wanted = std::array<bool, 3>;

at::Tensor empty(Sizes sizes, const at::Tensor& like) { return at::empty(sizes, like.options()); }

at::Tensor in_format_of(const at::Tensor& like) {
  return at::empty(like.sizes(), like.options(), like.suggest_memory_format());
}

at::Tensor like_first(const at::Tensor& x) { return at::empty_like(x); }
at::Tensor clamped(const at::Tensor& x, const at::Scalar&, const at::Scalar&) { return at::empty_like(x); }

at::Tensor where(const at::Tensor& condition, const at::Tensor& a, const at::Tensor& b) {
  const auto sizes = at::infer_size(condition.sizes(), at::infer_size(a.sizes(), b.sizes()));
  return at::empty(sizes, a.options().dtype(at::result_type(a, b)));
}

at::Tensor index_select(const at::Tensor& x, int64_t dim, const at::Tensor& index) {
  std::vector<int64_t> sizes = x.sizes().vec();
  if (!sizes.empty()) sizes[static_cast<size_t>(dim < 0 ? dim + x.dim() : dim)] = index.numel();
  return empty(sizes, x);
}

at::Tensor embedding_backward(const at::Tensor& gradient, const at::Tensor&, int64_t rows, int64_t, bool) {
  return empty({rows, gradient.size(-1)}, gradient);
}

// Products of bfloat16 and float16 with float32 results, on a GPU.
at::Tensor& mm_dtype_out(const at::Tensor&, const at::Tensor&, at::ScalarType, at::Tensor& out) { return out; }
at::Tensor& addmm_dtype_out(const at::Tensor&, const at::Tensor&, const at::Tensor&, at::ScalarType, const at::Scalar&,
                            const at::Scalar&, at::Tensor& out) {
  return out;
}

Two dropout(const at::Tensor& x, double, std::optional<bool>) {
  return {at::empty_like(x), at::empty(x.sizes(), x.options().dtype(at::kBool))};
}
at::Tensor dropout_backward(const at::Tensor& gradient, const at::Tensor&, double) { return at::empty_like(gradient); }

/// The dtype of the statistics of a norm: that of the weight, if this is wider than that of the input.
at::TensorOptions statistics_of(const at::Tensor& x, const OptionalTensor& weight) {
  return x.options().dtype(weight && weight->defined() ? weight->scalar_type() : x.scalar_type());
}

Three layer_norm(const at::Tensor& x, Sizes shape, const OptionalTensor& weight, const OptionalTensor&, double) {
  std::vector<int64_t> sizes = x.sizes().vec();
  std::fill(sizes.end() - static_cast<int64_t>(shape.size()), sizes.end(), 1);
  const at::TensorOptions options = statistics_of(x, weight);
  const at::Tensor out = at::empty(x.sizes(), x.options());
  return {out, at::empty(sizes, options), at::empty(sizes, options)};
}

Three layer_norm_backward(const at::Tensor&, const at::Tensor& x, Sizes shape, const at::Tensor&, const at::Tensor&,
                          const OptionalTensor& weight, const OptionalTensor&, Wanted wanted) {
  const auto of_weight = [&](bool is_wanted) {
    return is_wanted ? at::empty(shape, statistics_of(x, weight)) : at::Tensor();
  };
  const at::Tensor dx = wanted[0] ? at::empty(x.sizes(), x.options()) : at::Tensor();
  const at::Tensor d_weight = of_weight(wanted[1]);
  return {dx, d_weight, of_weight(wanted[2])};
}

Three batch_norm(const at::Tensor& x, const OptionalTensor& weight, const OptionalTensor&, const OptionalTensor&,
                 const OptionalTensor&, bool training, double, double) {
  const int64_t channels = training ? x.size(1) : 0;
  const at::TensorOptions options = statistics_of(x, weight);
  const at::Tensor mean = at::empty({channels}, options), inverse_std = at::empty({channels}, options);
  return {in_format_of(x), mean, inverse_std};
}

Three batch_norm_backward(const at::Tensor&, const at::Tensor& x, const OptionalTensor& weight, const OptionalTensor&,
                          const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, bool, double,
                          Wanted wanted) {
  const auto of_channels = [&](bool is_wanted) {
    return is_wanted ? at::empty({x.size(1)}, statistics_of(x, weight)) : at::Tensor();
  };
  const at::Tensor dx = wanted[0] ? in_format_of(x) : at::Tensor();
  return {dx, of_channels(wanted[1]), of_channels(wanted[2])};
}

/// (B, heads, T, D) in memory as (B, T, heads, D), as LibTorch's attention returns gradients.
at::Tensor heads_like(const at::Tensor& x) {
  return empty({x.size(0), x.size(2), x.size(1), x.size(3)}, x).transpose(1, 2);
}

Two attention(const at::Tensor& query, const at::Tensor&, const at::Tensor&, double, bool, const OptionalTensor&,
              std::optional<double>) {
  const at::Tensor out = at::empty_like(query);
  const at::Tensor log_sums =
      at::empty({query.size(0), query.size(2), query.size(1)}, query.options().dtype(at::kFloat));
  return {out, log_sums.transpose(1, 2)};
}

Three attention_backward(const at::Tensor&, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const at::Tensor&, const at::Tensor&, double, bool, const OptionalTensor&,
                         std::optional<double>) {
  const at::Tensor d_query = heads_like(query), d_key = heads_like(key);
  return {d_query, d_key, heads_like(value)};
}

bool is_channels_last(const at::Tensor& x) {
  const auto format = x.suggest_memory_format();
  return format == at::MemoryFormat::ChannelsLast || format == at::MemoryFormat::ChannelsLast3d;
}

/// The layout of the results of a convolution.
at::MemoryFormat format_of(const at::Tensor& input, const at::Tensor& weight) {
  if (!is_channels_last(input) && !is_channels_last(weight)) return at::MemoryFormat::Contiguous;
  return input.dim() == 5 ? at::MemoryFormat::ChannelsLast3d : at::MemoryFormat::ChannelsLast;
}

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight, const OptionalTensor&, Sizes stride,
                       Sizes padding, Sizes dilation, bool transposed, Sizes output_padding, int64_t groups) {
  const auto each = [&](Sizes numbers, const char* name) {  // one number applies to all dimensions
    return at::native::expand_param_if_needed(numbers, name, input.dim() - 2);
  };
  const auto paddings = each(padding, "padding"), strides = each(stride, "stride"),
             dilations = each(dilation, "dilation");
  const std::vector<int64_t> sizes =
      transposed ? at::native::conv_input_size(input.sizes(), weight.sizes(), paddings,
                                               each(output_padding, "output_padding"), strides, dilations, groups)
                 : at::native::conv_output_size(input.sizes(), weight.sizes(), paddings, strides, dilations);
  return at::empty(sizes, input.options(), format_of(input, weight));
}

Three convolution_backward(const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight,
                           at::OptionalIntArrayRef, Sizes, Sizes, Sizes, bool, Sizes, int64_t, Wanted wanted) {
  // oneDNN gives the gradient of the weight the layout of the input, from which autograd makes a copy.
  const bool is_gpu = GpuOperations::wanted();
  const auto like = [&](const at::Tensor& x) {
    return at::empty(x.sizes(), x.options(), is_gpu ? x.suggest_memory_format() : format_of(input, weight));
  };
  const at::Tensor dx = wanted[0] ? like(input) : at::Tensor(), d_weight = wanted[1] ? like(weight) : at::Tensor();
  return {dx, d_weight, wanted[2] ? empty({gradient.size(1)}, weight) : at::Tensor()};
}

/// Optimizers that change their arguments and return nothing.
void update(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  torch::jit::drop(*stack, op.schema().arguments().size());
}

}  // namespace

void register_shape_kernels() {
  static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__, __LINE__);
  library.impl("relu", like_first);
  library.impl("hardtanh", clamped);
  library.impl("where.self", where);
  library.impl("index_select", index_select);
  library.impl("embedding_dense_backward", embedding_backward);
  library.impl("mm.dtype_out", mm_dtype_out);
  library.impl("addmm.dtype_out", addmm_dtype_out);
  library.impl("native_dropout", dropout);
  library.impl("native_dropout_backward", dropout_backward);
  library.impl("native_layer_norm", layer_norm);
  library.impl("native_layer_norm_backward", layer_norm_backward);
  library.impl("native_batch_norm", batch_norm);
  library.impl("native_batch_norm_backward", batch_norm_backward);
  library.impl("_scaled_dot_product_flash_attention_for_cpu", attention);
  library.impl("_scaled_dot_product_flash_attention_for_cpu_backward", attention_backward);
  library.impl("convolution", convolution);
  library.impl("convolution_backward", convolution_backward);
  for (const char* name : {"_fused_adam_", "_fused_adam_.tensor_lr", "_fused_adamw_", "_fused_adamw_.tensor_lr",
                           "_fused_sgd_", "_fused_sgd_.tensor_lr", "_fused_adagrad_", "_fused_adagrad_.tensor_lr"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&update>());
  }
}

}  // namespace trainkit::detail
