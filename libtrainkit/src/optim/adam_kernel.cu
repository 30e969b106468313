#include <cuda_runtime.h>

#include <cmath>

#include "optim/adam_kernel.h"

namespace trainkit::detail {
namespace {

constexpr int kThreads = 256;

/// Updates one value. Source: adam_math in ATen/native/cuda/fused_adam_utils.cuh (PyTorch 2.11).
struct Update {
  float lr, beta1, beta2, eps, weight_decay, bias_correction1, bias_correction2_sqrt;
  bool decouples_decay;

  __device__ Update(const AdamArguments& a, float step)
      : lr(a.device_lr ? *a.device_lr : a.lr),
        beta1(a.beta1),
        beta2(a.beta2),
        eps(a.eps),
        weight_decay(a.weight_decay),
        bias_correction1(1 - powf(a.beta1, step)),
        bias_correction2_sqrt(sqrtf(1 - powf(a.beta2, step))),
        decouples_decay(a.decouples_decay) {}

  __device__ void operator()(float& param, float gradient, float& exp_avg, float& exp_avg_sq) const {
    if (weight_decay != 0) {
      if (decouples_decay) {
        param -= lr * weight_decay * param;
      } else {
        gradient += param * weight_decay;
      }
    }
    exp_avg = fmaf(beta1, exp_avg, fmaf(-beta1, gradient, gradient));
    const float square = gradient * gradient;
    exp_avg_sq = fmaf(beta2, exp_avg_sq, fmaf(-beta2, square, square));
    const float step_size = lr / bias_correction1;
    const float denominator = sqrtf(exp_avg_sq) / bias_correction2_sqrt + eps;
    param -= step_size * exp_avg / denominator;
  }
};

__global__ void __launch_bounds__(kThreads)
    adam_kernel(AdamList list, Chunks<kMostParameters> chunks, AdamArguments a) {
  if (a.found_inf && *a.found_inf == 1) return;
  const auto [t, begin, size] = chunks.part_of(static_cast<int>(blockIdx.x), list.sizes, list.count);
  float* const param = list.params[t] + begin;
  const float* const gradient = list.gradients[t] + begin;
  float* const exp_avg = list.exp_avgs[t] + begin;
  float* const exp_avg_sq = list.exp_avg_sqs[t] + begin;
  const Update update(a, *list.steps[t]);
  const auto addresses = reinterpret_cast<uintptr_t>(param) | reinterpret_cast<uintptr_t>(gradient) |
                         reinterpret_cast<uintptr_t>(exp_avg) | reinterpret_cast<uintptr_t>(exp_avg_sq);
  const int64_t fours = addresses % sizeof(float4) == 0 ? size / 4 : 0;
  for (int64_t i = threadIdx.x; i < fours; i += blockDim.x) {
    float4 p = reinterpret_cast<const float4*>(param)[i], m = reinterpret_cast<const float4*>(exp_avg)[i],
           s = reinterpret_cast<const float4*>(exp_avg_sq)[i];
    const float4 g = reinterpret_cast<const float4*>(gradient)[i];
    update(p.x, g.x, m.x, s.x);
    update(p.y, g.y, m.y, s.y);
    update(p.z, g.z, m.z, s.z);
    update(p.w, g.w, m.w, s.w);
    reinterpret_cast<float4*>(param)[i] = p;
    reinterpret_cast<float4*>(exp_avg)[i] = m;
    reinterpret_cast<float4*>(exp_avg_sq)[i] = s;
  }
  for (int64_t i = fours * 4 + threadIdx.x; i < size; i += blockDim.x) {
    update(param[i], gradient[i], exp_avg[i], exp_avg_sq[i]);
  }
}

}  // namespace

int launch_adam(const AdamList& list, const AdamArguments& arguments, void* stream) {
  const auto chunks = Chunks<kMostParameters>::of(list.sizes, list.count);
  const auto blocks = static_cast<unsigned>(chunks.first[list.count]);
  if (blocks == 0) return cudaSuccess;
  adam_kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(list, chunks, arguments);
  return cudaGetLastError();
}

}  // namespace trainkit::detail
