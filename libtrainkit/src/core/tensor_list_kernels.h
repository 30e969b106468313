#pragma once
/// The CUDA kernels of core/tensor_lists.h on plain memory. They return the cudaError_t of the launch; `stream` is a
/// cudaStream_t. C++17 without LibTorch, since nvcc compiles it too.

#include <cstdint>

namespace trainkit::detail {

/// Number of tensors that one launch takes.
constexpr int kMostTensors = 128;

struct TensorList {
  float* data[kMostTensors];
  int64_t sizes[kMostTensors];
  int count = 0;
};

/// Multiplies the tensors in place: by `*value`, or with `max_norm` >= 0 by min(1, max_norm / (*value + 1e-6)), which
/// is NaN if `*value` is. Ends at once if the factor is 1.
int launch_scale(const TensorList& tensors, const float* value, float max_norm, void* stream);

/// Copies the first number of each tensor to `out`.
int launch_gather(const TensorList& tensors, float* out, void* stream);

}  // namespace trainkit::detail
