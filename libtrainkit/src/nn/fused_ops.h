#pragma once
/// What stands between the matrix products of a Transformer on a GPU, and its loss: each as one kernel forward and one
/// or two backward.
///
/// They are used on CUDA devices, and on the CPU where the memory of a step on a GPU is recorded
/// (core/gpu_operations.h): there they take the same memory. Tensors are float32, bfloat16 or float16, and sums
/// float32. Under autocast the residual stream stays float32, and what goes into a product is of autocast's dtype at
/// once. What they cannot take is computed by LibTorch's operations.
///
/// Nothing here synchronises; all of it can be captured in a CUDA graph. Results have the same bits on every run. There
/// is no second derivative: c10::NotImplementedError with create_graph.

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>

namespace trainkit::detail {

/// Whether operations on x are those of this header: it is on a CUDA device that our kernels run on
/// (core/gpu_kernel_support.h), or the CPU stands in for one.
bool runs_gpu_operations(const at::Tensor& x);

/// Of a layer norm over the last dimension.
struct NormWeights {
  at::Tensor weight;  // (C)
  at::Tensor bias;    // (C) or undefined
  double eps;
};

struct ResidualNorm {
  at::Tensor sum;     // (..., C) of x's dtype: x + branch, or x
  at::Tensor normed;  // (..., C): what a matrix product takes
};

/// The layer norm of x + branch, or of x. @param x, branch (..., C), branch may be undefined. Backward adds what comes
/// to `sum` to what comes to `normed`. Kept for backward: `sum` and 8 bytes a row.
ResidualNorm residual_layer_norm(const at::Tensor& x, const at::Tensor& branch, const NormWeights& norm);

/// gelu(x + bias), of x's dtype. @param x (..., F), @param bias (F), may be undefined. Kept for backward: x.
at::Tensor bias_gelu(const at::Tensor& x, const at::Tensor& bias, bool by_tanh);

/// A pre-norm block: x + attention(norm(x)), then that + mlp(norm(that)).
at::Tensor residual_block(const at::Tensor& x, const NormWeights& ln_1,
                          c10::function_ref<at::Tensor(const at::Tensor&)> attention, const NormWeights& ln_2,
                          c10::function_ref<at::Tensor(const at::Tensor&)> mlp);

/// Whether gpu_cross_entropy takes these: runs_gpu_operations, logits (N, C) and target (N) int64, both contiguous.
bool has_gpu_cross_entropy(const at::Tensor& logits, const at::Tensor& target);

/// See trainkit::cross_entropy. Kept for backward: the logits, and 4 bytes a row; the gradient is made there.
at::Tensor gpu_cross_entropy(const at::Tensor& logits, const at::Tensor& target, int64_t ignore_index);

}  // namespace trainkit::detail
