#pragma once
/// Fused batch normalisation for training on the CPU.

#include <ATen/core/Tensor.h>

namespace trainkit::detail {

struct BatchNormRunning {
  at::Tensor mean;  // (C), float32; updated
  at::Tensor var;   // (C), float32; updated, unbiased
  double momentum;
  double eps;
};

/// Returns whether fused_batch_norm supports these tensors: on the CPU, float32 or bfloat16, channels innermost in
/// memory (2-D, or channels_last), parameters in float32. `residual` may be undefined; otherwise it has x's dtype,
/// shape and layout.
bool has_fused_batch_norm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
                          const at::Tensor& bias);

/// Computes batch_norm(x) with the statistics of its rows, adds `residual` if it is defined, and applies ReLU if
/// `relu`. The statistics do not depend on the number of threads. Backward with create_graph uses LibTorch's
/// operation. Source of the formulas: Ioffe and Szegedy, arXiv 1502.03167.
at::Tensor fused_batch_norm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
                            const at::Tensor& bias, const BatchNormRunning& running, bool relu);

}  // namespace trainkit::detail
