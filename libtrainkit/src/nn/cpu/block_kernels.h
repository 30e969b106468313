#pragma once
/// Operations between the matrix products of a Transformer block on the CPU, each in one pass over memory.
///
/// A residual stream is (N, C) float32, C a multiple of 16. Tensors of type `kind`, the inputs and outputs of matrix
/// products, are float32 or bfloat16. Weights and biases are float32. All tensors are contiguous. Sums over rows have a
/// fixed order, independent of the number of threads. Not differentiable by autograd.

#include <ATen/core/Tensor.h>

namespace trainkit::detail {

struct Normalised {
  at::Tensor sum;          // (N, C) float32: x + added + bias, or x itself
  at::Tensor out;          // (N, C) of `kind`: weight (sum - mean) inverse_std + norm_bias
  at::Tensor mean;         // (N) float32
  at::Tensor inverse_std;  // (N) float32
};

/// Computes the layer norm of x, or of x + added + bias. @param added (N, C) of `kind`; may be undefined, as may the
/// biases.
Normalised add_layer_norm(const at::Tensor& x, const at::Tensor& added, const at::Tensor& bias,
                          const at::Tensor& weight, const at::Tensor& norm_bias, double eps, at::ScalarType kind);

/// Computes x + added + bias, the last residual of a block: (N, C) float32.
at::Tensor add_residual(const at::Tensor& x, const at::Tensor& added, const at::Tensor& bias);

struct LayerNormGradients {
  at::Tensor sum;     // (N, C) float32, including `d_residual`
  at::Tensor weight;  // (C)
  at::Tensor bias;    // (C); undefined without norm_bias
};

/// @param d_out (N, C) of its kind. @param d_residual (N, C) float32: the gradient that reaches `sum` past the norm.
LayerNormGradients layer_norm_backward(const at::Tensor& d_out, const at::Tensor& d_residual, const Normalised& norm,
                                       const at::Tensor& weight, bool has_bias);

enum class Activation { kGelu, kGeluTanh };

/// Computes activation(x + bias) in x's dtype. @param x (N, F). @param bias (F) float32 or undefined. The exact GELU's
/// erf has an error of at most 1.5e-7. Sources: Hendrycks and Gimpel, arXiv 1606.08415; Abramowitz and Stegun 7.1.26.
at::Tensor bias_activation(const at::Tensor& x, const at::Tensor& bias, Activation activation);

struct BiasGradients {
  at::Tensor x;     // dtype of x
  at::Tensor bias;  // (F) float32; undefined without a bias
};
BiasGradients bias_activation_backward(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& bias,
                                       Activation activation);

/// Sums the rows of x (N, C) of any dtype: (C) float32.
at::Tensor sum_rows(const at::Tensor& x);

}  // namespace trainkit::detail
