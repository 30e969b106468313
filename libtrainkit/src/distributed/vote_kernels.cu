// Kernels of DeviceVotes.
#include <cuda_runtime.h>

#include "distributed/vote_kernels.h"

namespace trainkit::detail {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 512;

__global__ void scale_kernel(ScaledTensors tensors, const float* __restrict__ factor) {
  const float by = *factor;
  if (by == 1.0f) return;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int t = 0; t < tensors.count; ++t) {
    float* const data = tensors.data[t];
    const int64_t size = tensors.sizes[t];
    for (int64_t i = first; i < size; i += stride) data[i] *= by;
  }
}

__global__ void decide_kernel(const double* __restrict__ votes, double ranks, double expected, float* blocked,
                              float* correction) {
  const double weight = votes[0];
  *blocked = votes[1] == ranks && weight > 0 ? 0.0f : 1.0f;
  *correction = weight > 0 ? static_cast<float>(expected / weight) : 0.0f;
}

}  // namespace

int launch_scale(const ScaledTensors& tensors, const float* factor, void* stream) {
  int64_t largest = 0;
  for (int t = 0; t < tensors.count; ++t) largest = largest > tensors.sizes[t] ? largest : tensors.sizes[t];
  if (largest == 0) return cudaSuccess;
  const int64_t blocks = (largest + kThreads - 1) / kThreads;
  scale_kernel<<<static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks), kThreads, 0,
                 static_cast<cudaStream_t>(stream)>>>(tensors, factor);
  return cudaGetLastError();
}

int launch_decide(const double* votes, double ranks, double expected, float* blocked, float* correction, void* stream) {
  decide_kernel<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(votes, ranks, expected, blocked, correction);
  return cudaGetLastError();
}

}  // namespace trainkit::detail
