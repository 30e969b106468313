#include "core/tensors/skipped_products.h"

#include <ATen/ExpandUtils.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/native/utils/ParamUtils.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/DispatchKey.h>
#include <torch/library.h>

#include <array>
#include <tuple>
#include <vector>

namespace trainkit::detail {
namespace {

// Note [Skipped products]
// ~~~~~~~~~~~~~~~~~~~~~~~
// LibTorch's dispatcher calls the functions below, instead of those of the CPU, in threads that include the dispatch
// key Fake. The key is below autograd, so graphs and gradients are recorded as always, and LibTorch itself registers
// nothing for it. Every other operation falls through.

constexpr auto kKey = c10::DispatchKey::Fake;

/// Calls LibTorch's own operation.
using Compute = c10::impl::ExcludeDispatchKeyGuard;

using Sizes = at::IntArrayRef;

at::Tensor zeros(Sizes sizes, const at::Tensor& like) {
  const Compute compute(kKey);
  return at::zeros(sizes, like.options());
}

at::Tensor skip_mm(const at::Tensor& a, const at::Tensor& b) { return zeros({a.size(0), b.size(1)}, a); }
at::Tensor& skip_mm_out(const at::Tensor&, const at::Tensor&, at::Tensor& out) { return out.zero_(); }
at::Tensor& skip_mm_dtype_out(const at::Tensor&, const at::Tensor&, at::ScalarType, at::Tensor& out) {
  return out.zero_();
}
at::Tensor skip_addmm(const at::Tensor&, const at::Tensor& a, const at::Tensor& b, const at::Scalar&,
                      const at::Scalar&) {
  return skip_mm(a, b);
}
at::Tensor& skip_addmm_out(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Scalar&,
                           const at::Scalar&, at::Tensor& out) {
  return out.zero_();
}
at::Tensor& skip_addmm_dtype_out(const at::Tensor&, const at::Tensor&, const at::Tensor&, at::ScalarType,
                                 const at::Scalar&, const at::Scalar&, at::Tensor& out) {
  return out.zero_();
}
at::Tensor skip_bmm(const at::Tensor& a, const at::Tensor& b) { return zeros({a.size(0), a.size(1), b.size(2)}, a); }
at::Tensor& skip_bmm_out(const at::Tensor&, const at::Tensor&, at::Tensor& out) { return out.zero_(); }
at::Tensor skip_baddbmm(const at::Tensor&, const at::Tensor& a, const at::Tensor& b, const at::Scalar&,
                        const at::Scalar&) {
  return skip_bmm(a, b);
}

/// (B, heads, T, D) in memory as (B, T, heads, D), as LibTorch's attention returns gradients.
at::Tensor heads_like(const at::Tensor& x) {
  return zeros({x.size(0), x.size(2), x.size(1), x.size(3)}, x).transpose(1, 2);
}

std::tuple<at::Tensor, at::Tensor> skip_attention(const at::Tensor& query, const at::Tensor&, const at::Tensor&, double,
                                                  bool, const std::optional<at::Tensor>&, std::optional<double>) {
  const Compute compute(kKey);
  const at::Tensor log_sums =
      at::zeros({query.size(0), query.size(2), query.size(1)}, query.options().dtype(at::kFloat));
  return {at::zeros_like(query), log_sums.transpose(1, 2)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> skip_attention_backward(const at::Tensor&, const at::Tensor& query,
                                                                       const at::Tensor& key, const at::Tensor& value,
                                                                       const at::Tensor&, const at::Tensor&, double,
                                                                       bool, const std::optional<at::Tensor>&,
                                                                       std::optional<double>) {
  const Compute compute(kKey);
  return {heads_like(query), heads_like(key), heads_like(value)};
}

bool is_channels_last(const at::Tensor& x) {
  const auto format = x.suggest_memory_format();
  return format == at::MemoryFormat::ChannelsLast || format == at::MemoryFormat::ChannelsLast3d;
}

at::Tensor skip_convolution(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                            Sizes stride, Sizes padding, Sizes dilation, bool transposed, Sizes output_padding,
                            int64_t groups) {
  const Compute compute(kKey);
  if (transposed || input.dim() != weight.dim()) {
    return at::convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups);
  }
  const bool is_last = is_channels_last(input) || is_channels_last(weight);
  const auto format = !is_last           ? at::MemoryFormat::Contiguous
                      : input.dim() == 5 ? at::MemoryFormat::ChannelsLast3d
                                         : at::MemoryFormat::ChannelsLast;
  const int64_t dimensions = input.dim() - 2;
  const auto each = [&](Sizes numbers, const char* name) {  // one number applies to all dimensions
    return at::native::expand_param_if_needed(numbers, name, dimensions);
  };
  const auto sizes = at::native::conv_output_size(input.sizes(), weight.sizes(), each(padding, "padding"),
                                                  each(stride, "stride"), each(dilation, "dilation"));
  return at::empty(sizes, input.options(), format).zero_();
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> skip_convolution_backward(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight, at::OptionalIntArrayRef bias_sizes,
    Sizes stride, Sizes padding, Sizes dilation, bool transposed, Sizes output_padding, int64_t groups,
    std::array<bool, 3> wanted) {
  const Compute compute(kKey);
  if (transposed) {
    return at::convolution_backward(gradient, input, weight, bias_sizes, stride, padding, dilation, transposed,
                                    output_padding, groups, wanted);
  }
  const auto like = [](const at::Tensor& x) {
    return at::empty(x.sizes(), x.options(), x.suggest_memory_format()).zero_();
  };
  return {wanted[0] ? like(input) : at::Tensor(), wanted[1] ? like(weight) : at::Tensor(),
          wanted[2] ? at::zeros({weight.size(0)}, weight.options()) : at::Tensor()};
}

/// Random initial weights; normal_ and uniform_ have the same arguments.
at::Tensor& skip_random(at::Tensor& x, double, double, std::optional<at::Generator>) { return x.zero_(); }

void register_functions() {
  static torch::Library all(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
  all.fallback(torch::CppFunction::makeFallthrough());
  static torch::Library library(torch::Library::IMPL, "aten", kKey, __FILE__, __LINE__);
  library.impl("mm", skip_mm);
  library.impl("mm.out", skip_mm_out);
  library.impl("mm.dtype_out", skip_mm_dtype_out);
  library.impl("addmm", skip_addmm);
  library.impl("addmm.out", skip_addmm_out);
  library.impl("addmm.dtype_out", skip_addmm_dtype_out);
  library.impl("bmm", skip_bmm);
  library.impl("bmm.out", skip_bmm_out);
  library.impl("baddbmm", skip_baddbmm);
  library.impl("normal_", skip_random);
  library.impl("uniform_", skip_random);
  library.impl("_scaled_dot_product_flash_attention_for_cpu", skip_attention);
  library.impl("_scaled_dot_product_flash_attention_for_cpu_backward", skip_attention_backward);
  library.impl("convolution", skip_convolution);
  library.impl("convolution_backward", skip_convolution_backward);
}

}  // namespace

SkippedProducts::SkippedProducts(bool on) {
  if (!on) return;
  static const bool is_registered = (register_functions(), true);
  static_cast<void>(is_registered);
  guard_.emplace(kKey);
}

bool SkippedProducts::active() { return c10::impl::tls_is_dispatch_key_included(kKey); }

}  // namespace trainkit::detail
