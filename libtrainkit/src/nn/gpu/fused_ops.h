#pragma once
/// Fused operations between the matrix products of a Transformer on a GPU, and its loss: one kernel forward and one or
/// two backward each.
///
/// Used on CUDA devices, and on the CPU while the memory of a step on a GPU is recorded (core/device/gpu_operations.h),
/// where they allocate the same memory. Tensors are float32, bfloat16 or float16; sums are float32. Under autocast the
/// residual stream stays float32, and inputs of matrix products are written in autocast's dtype directly. Unsupported
/// inputs use LibTorch's operations.
///
/// Nothing here synchronises; all of it can be captured in a CUDA graph. Results are bitwise repeatable. No second
/// derivative: c10::NotImplementedError with create_graph.

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>

namespace trainkit::detail {

/// Returns whether operations on x use this header: x is on a CUDA device that our kernels support
/// (core/device/gpu_kernel_support.h), or the CPU stands in for one.
bool runs_gpu_operations(const at::Tensor& x);

/// Parameters of a layer norm over the last dimension.
struct NormWeights {
  at::Tensor weight;  // (C)
  at::Tensor bias;    // (C) or undefined
  double eps;
};

/// The values between two blocks, sum + branch, which the next layer norm adds. In the dtypes of ResidualNorm.
struct ResidualStream {
  at::Tensor sum;
  at::Tensor branch;  // output of a matrix product, or undefined

  at::Tensor added() const { return branch.defined() ? sum + branch : sum; }
};

struct ResidualNorm {
  at::Tensor sum;     // (..., C) of x's dtype: x + branch, or x
  at::Tensor normed;  // (..., C): input of a matrix product
};

/// Computes the layer norm of x + branch, or of x. @param x, branch (..., C); branch may be undefined. Backward adds
/// the gradient of `sum` to that of `normed`. Keeps `sum` and 8 bytes per row for backward.
ResidualNorm residual_layer_norm(const at::Tensor& x, const at::Tensor& branch, const NormWeights& norm);

/// Computes gelu(x + bias) in x's dtype. @param x (..., F). @param bias (F), may be undefined. Keeps x for backward.
at::Tensor bias_gelu(const at::Tensor& x, const at::Tensor& bias, bool by_tanh);

/// Computes a pre-norm block: y = x + attention(norm(x)), then y and mlp(norm(y)). Frees x when it is added.
ResidualStream residual_block(ResidualStream x, const NormWeights& ln_1,
                              c10::function_ref<at::Tensor(const at::Tensor&)> attention, const NormWeights& ln_2,
                              c10::function_ref<at::Tensor(const at::Tensor&)> mlp);

// The same operations without autograd, for functions that compute their own gradients.

/// Returns the dtype of the inputs of matrix products: autocast's, or that of `x`.
at::ScalarType product_type(const at::Tensor& x);
/// Returns whether run_layer_norm supports these arguments; `x` has at least one dimension.
bool has_gpu_norm(const at::Tensor& x, const NormWeights& norm, at::ScalarType product);

/// `sum` and `normed` as in ResidualNorm; `mean` and `inverse_std` (rows) float32.
struct NormResult {
  at::Tensor sum, normed, mean, inverse_std;
};
NormResult run_layer_norm(const at::Tensor& x, const at::Tensor& branch, const NormWeights& norm,
                          at::ScalarType product);

struct NormGradients {
  at::Tensor sum, branch, weight, bias;  // branch and bias may be undefined
};
/// @param d_residual gradient of `sum` past the norm, contiguous or undefined. @param norm `normed` is not used.
NormGradients run_layer_norm_backward(const at::Tensor& gradient, const at::Tensor& d_residual, const NormResult& norm,
                                      const at::Tensor& weight, bool has_branch, bool has_bias);

/// @param x contiguous. @param bias (F), defined.
at::Tensor run_bias_gelu(const at::Tensor& x, const at::Tensor& bias, bool by_tanh);
struct GeluGradients {
  at::Tensor x, bias;
};
GeluGradients run_bias_gelu_backward(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& bias,
                                     bool by_tanh);

/// Returns whether gpu_cross_entropy supports these arguments: runs_gpu_operations, logits (N, C) and target (N) int64,
/// both contiguous.
bool has_gpu_cross_entropy(const at::Tensor& logits, const at::Tensor& target);

/// See trainkit::cross_entropy. Keeps the logits and 4 bytes per row for backward, which computes the gradient.
at::Tensor gpu_cross_entropy(const at::Tensor& logits, const at::Tensor& target, int64_t ignore_index);

}  // namespace trainkit::detail
