#include <cuda_runtime.h>

#include "core/tensor_list_kernels.h"

namespace trainkit::detail {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 512;

/// The arithmetic of clip_factor() with LibTorch's operations.
__device__ float clip_factor_of(float norm, float max_norm) {
  const float factor = 1.0f / (norm + 1e-6f) * max_norm;
  return factor > 1.0f ? 1.0f : factor;  // NaN stays
}

__global__ void scale_kernel(TensorList tensors, const float* __restrict__ value, float max_norm) {
  const float by = max_norm >= 0 ? clip_factor_of(*value, max_norm) : *value;
  if (by == 1.0f) return;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int t = 0; t < tensors.count; ++t) {
    float* const data = tensors.data[t];
    const int64_t size = tensors.sizes[t];
    for (int64_t i = first; i < size; i += stride) data[i] *= by;
  }
}

__global__ void gather_kernel(TensorList tensors, float* __restrict__ out) {
  const int t = static_cast<int>(threadIdx.x);
  if (t < tensors.count) out[t] = *tensors.data[t];
}

}  // namespace

int launch_scale(const TensorList& tensors, const float* value, float max_norm, void* stream) {
  int64_t largest = 0;
  for (int t = 0; t < tensors.count; ++t) largest = largest > tensors.sizes[t] ? largest : tensors.sizes[t];
  if (largest == 0) return cudaSuccess;
  const int64_t blocks = (largest + kThreads - 1) / kThreads;
  scale_kernel<<<static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks), kThreads, 0,
                 static_cast<cudaStream_t>(stream)>>>(tensors, value, max_norm);
  return cudaGetLastError();
}

int launch_gather(const TensorList& tensors, float* out, void* stream) {
  gather_kernel<<<1, kMostTensors, 0, static_cast<cudaStream_t>(stream)>>>(tensors, out);
  return cudaGetLastError();
}

}  // namespace trainkit::detail
