#pragma once
/// The products of a fused block with one of its weights, forward and backward.

#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

#include <utility>

namespace trainkit::detail {

/// A weight and its layout: (out, in), or (in, out) if `is_transposed`. Forward multiplies by the (in, out) form.
struct BlockMatrix {
  at::Tensor weight;
  bool is_transposed;

  at::Tensor of(const at::Tensor& x, const at::Tensor& bias = {}) const {
    const at::Tensor matrix = is_transposed ? weight : weight.t();
    return bias.defined() ? at::addmm(bias.to(x.scalar_type()), x, matrix) : at::mm(x, matrix);
  }
  at::Tensor input_gradient(const at::Tensor& gradient) const {
    return at::mm(gradient, is_transposed ? weight.t() : weight);
  }
  at::Tensor weight_gradient(const at::Tensor& x, const at::Tensor& gradient) const {
    const auto [a, b] = weight_factors(x, gradient, is_transposed);
    return at::mm(a, b).to(at::kFloat);
  }
  /// Returns the two matrices whose product is the gradient of a weight of this layout.
  static std::pair<at::Tensor, at::Tensor> weight_factors(const at::Tensor& x, const at::Tensor& gradient,
                                                          bool is_transposed) {
    return is_transposed ? std::pair(x.t(), gradient) : std::pair(gradient.t(), x);
  }
};

}  // namespace trainkit::detail
