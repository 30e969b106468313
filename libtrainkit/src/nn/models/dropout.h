#pragma once
/// Dropout that allocates on the CPU what it allocates on a GPU, while the memory of a step on a GPU is recorded.

#include <ATen/ops/dropout.h>
#include <ATen/ops/native_dropout.h>

#include <tuple>

#include "core/device/gpu_operations.h"
#include "core/machine/shapes_only.h"

namespace trainkit::detail {

/// Whether the memory of a GPU is recorded.
inline bool allocates_as_gpu() { return shapes_only() && GpuOperations::wanted(); }

/// at::dropout(x, p, train). The CPU's own keeps a mask of x's dtype, a GPU's one of bool.
inline at::Tensor dropout(const at::Tensor& x, double p, bool train) {
  if (p <= 0 || !train) return x;
  return allocates_as_gpu() ? std::get<0>(at::native_dropout(x, p, true)) : at::dropout(x, p, true);
}

/// The dropout of an attention. With dropout the CPU materialises all weights, which no GPU does.
inline double attention_dropout(double p, bool train) { return train && !allocates_as_gpu() ? p : 0.0; }

}  // namespace trainkit::detail
