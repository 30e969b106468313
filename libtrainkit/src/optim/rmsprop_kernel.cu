#include <cuda_runtime.h>

#include <cmath>

#include "optim/rmsprop_kernel.h"

namespace trainkit::detail {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    rmsprop_kernel(RMSpropList list, Chunks<kMostRMSpropParameters> chunks, RMSpropArguments a) {
  if (a.found_inf && *a.found_inf == 1) return;
  const auto [t, begin, size] = chunks.part_of(static_cast<int>(blockIdx.x), list.sizes, list.count);
  float* const param = list.params[t] + begin;
  const float* const gradient = list.gradients[t] + begin;
  float* const square_avg = list.square_avgs[t] + begin;
  float* const buffer = list.momentum_buffers[t] ? list.momentum_buffers[t] + begin : nullptr;
  float* const grad_avg = list.grad_avgs[t] ? list.grad_avgs[t] + begin : nullptr;
  const float lr = a.device_lr ? *a.device_lr : a.lr;
  for (int64_t i = threadIdx.x; i < size; i += blockDim.x) {
    float g = gradient[i];
    if (a.weight_decay != 0) g += a.weight_decay * param[i];
    float variance = a.alpha * square_avg[i] + (1 - a.alpha) * g * g;
    square_avg[i] = variance;
    if (grad_avg) {
      const float mean = grad_avg[i] + (1 - a.alpha) * (g - grad_avg[i]);
      grad_avg[i] = mean;
      variance -= mean * mean;
      if (variance < 0) variance = 0;  // keeps NaN
    }
    float change = g / (sqrtf(variance) + a.eps);
    if (buffer) {
      change += a.momentum * buffer[i];
      buffer[i] = change;
    }
    param[i] -= lr * change;
  }
}

}  // namespace

int launch_rmsprop(const RMSpropList& list, const RMSpropArguments& arguments, void* stream) {
  const auto chunks = Chunks<kMostRMSpropParameters>::of(list.sizes, list.count);
  const auto blocks = static_cast<unsigned>(chunks.first[list.count]);
  if (blocks == 0) return cudaSuccess;
  rmsprop_kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(list, chunks, arguments);
  return cudaGetLastError();
}

}  // namespace trainkit::detail
