#pragma once
/// Batch normalisation while training on the CPU, with what usually follows it in one pass over the memory.

#include <ATen/core/Tensor.h>

namespace trainkit::detail {

struct BatchNormRunning {
  at::Tensor mean;  // (C), float32; updated
  at::Tensor var;   // (C), float32; updated, unbiased
  double momentum;
  double eps;
};

/// Whether fused_batch_norm takes these: on the CPU, float32 or bfloat16, the channels of a position beside each other
/// in memory (2-D, or channels_last), parameters in float32; `residual` (may be undefined) of the same kind and shape.
bool has_fused_batch_norm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
                          const at::Tensor& bias);

/// batch_norm(x) by the statistics of its rows, plus `residual` if it is defined, and no less than zero with `relu`.
/// The statistics do not depend on the number of threads. The gradient has none of its own. Source of the formulas:
/// Ioffe and Szegedy, arXiv 1502.03167.
at::Tensor fused_batch_norm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
                            const at::Tensor& bias, const BatchNormRunning& running, bool relu);

}  // namespace trainkit::detail
