#include <cuda_runtime.h>

#include <cmath>

#include "optim/adam_kernel.h"

namespace trainkit::detail {
namespace {

constexpr int kThreads = 256;

/// Values of one parameter in one thread: param, gradient, exp_avg, exp_avg_sq.
struct Values {
  float param, gradient, exp_avg, exp_avg_sq;
};

struct Factors {
  float lr, bias_correction1, bias_correction2_sqrt;
};

/// Source: adam_math in ATen/native/cuda/fused_adam_utils.cuh (PyTorch 2.11).
__device__ void update(Values& v, const AdamArguments& a, const Factors& f) {
  if (a.weight_decay != 0) {
    if (a.decouples_decay) {
      v.param -= f.lr * a.weight_decay * v.param;
    } else {
      v.gradient += v.param * a.weight_decay;
    }
  }
  v.exp_avg = fmaf(a.beta1, v.exp_avg, fmaf(-a.beta1, v.gradient, v.gradient));
  const float square = v.gradient * v.gradient;
  v.exp_avg_sq = fmaf(a.beta2, v.exp_avg_sq, fmaf(-a.beta2, square, square));
  const float step_size = f.lr / f.bias_correction1;
  const float denominator = sqrtf(v.exp_avg_sq) / f.bias_correction2_sqrt + a.eps;
  v.param -= step_size * v.exp_avg / denominator;
}

__global__ void __launch_bounds__(kThreads)
    adam_kernel(AdamList list, Chunks<kMostParameters> chunks, AdamArguments a) {
  if (a.found_inf && *a.found_inf == 1) return;
  const int block = static_cast<int>(blockIdx.x), t = chunks.tensor_at(block, list.count);
  const int64_t begin = (block - chunks.first[t]) * chunks.size;
  const int64_t left = list.sizes[t] - begin, size = left < chunks.size ? left : chunks.size;
  float* const param = list.params[t] + begin;
  const float* const gradient = list.gradients[t] + begin;
  float* const exp_avg = list.exp_avgs[t] + begin;
  float* const exp_avg_sq = list.exp_avg_sqs[t] + begin;
  const float step = *list.steps[t];
  const Factors f = {a.device_lr ? *a.device_lr : a.lr, 1 - powf(a.beta1, step), sqrtf(1 - powf(a.beta2, step))};
  const auto addresses = reinterpret_cast<uintptr_t>(param) | reinterpret_cast<uintptr_t>(gradient) |
                         reinterpret_cast<uintptr_t>(exp_avg) | reinterpret_cast<uintptr_t>(exp_avg_sq);
  const int64_t in_fours = addresses % sizeof(float4) == 0 ? size / 4 : 0;
  for (int64_t i = threadIdx.x; i < in_fours; i += blockDim.x) {
    float4 p = reinterpret_cast<const float4*>(param)[i], m = reinterpret_cast<const float4*>(exp_avg)[i],
           s = reinterpret_cast<const float4*>(exp_avg_sq)[i];
    const float4 g = reinterpret_cast<const float4*>(gradient)[i];
    Values four[4] = {{p.x, g.x, m.x, s.x}, {p.y, g.y, m.y, s.y}, {p.z, g.z, m.z, s.z}, {p.w, g.w, m.w, s.w}};
    for (Values& v : four) update(v, a, f);
    p = {four[0].param, four[1].param, four[2].param, four[3].param};
    m = {four[0].exp_avg, four[1].exp_avg, four[2].exp_avg, four[3].exp_avg};
    s = {four[0].exp_avg_sq, four[1].exp_avg_sq, four[2].exp_avg_sq, four[3].exp_avg_sq};
    reinterpret_cast<float4*>(param)[i] = p;
    reinterpret_cast<float4*>(exp_avg)[i] = m;
    reinterpret_cast<float4*>(exp_avg_sq)[i] = s;
  }
  for (int64_t i = in_fours * 4 + threadIdx.x; i < size; i += blockDim.x) {
    Values v = {param[i], gradient[i], exp_avg[i], exp_avg_sq[i]};
    update(v, a, f);
    param[i] = v.param;
    exp_avg[i] = v.exp_avg;
    exp_avg_sq[i] = v.exp_avg_sq;
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
