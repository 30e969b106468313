// The gradient of an embedding on a GPU.
#include "nn/gpu/gpu_rows.cuh"

namespace trainkit::detail::on_gpu {
namespace {

constexpr int kWarps = 8, kThreads = kWarp * kWarps;

/// A block adds the gradients of all lookups of one id, if its own lookup is the first of them. Always in the same
/// order, without atomics.
__global__ void __launch_bounds__(kThreads) embedding_gradient_kernel(EmbeddingGradientArguments a) {
  __shared__ int same[kMostLookups];  // lookups of the id, in order
  __shared__ int counts[kWarps];
  __shared__ float sums[kWarps][kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const auto own = static_cast<int>(blockIdx.x), lookups = static_cast<int>(a.lookups);
  const int64_t id = a.ids[own];

  bool is_later = false;
  for (int i = threadIdx.x; i < own && !is_later; i += kThreads) is_later = a.ids[i] == id;
  const unsigned later = __ballot_sync(~0u, is_later);
  if (lane == 0) counts[warp] = later != 0;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) {
    if (counts[w]) return;
  }
  __syncthreads();

  int found = 0;
  for (int first = own; first < lookups; first += kThreads) {
    const int i = first + static_cast<int>(threadIdx.x);
    const bool is_same = i < lookups && a.ids[i] == id;
    const unsigned ballot = __ballot_sync(~0u, is_same);
    if (lane == 0) counts[warp] = __popc(ballot);
    __syncthreads();
    int before = found;
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) before += counts[w];
      found += counts[w];
    }
    if (is_same) same[before + __popc(ballot & ((1u << lane) - 1))] = i;
    __syncthreads();
  }

  float* const row = a.d_weight + id * a.width;
  if (found <= kWarps) {  // mostly one
    for (int64_t c = threadIdx.x; c < a.width; c += kThreads) {
      float total = 0;
      for (int k = 0; k < found; ++k) total += a.d_out[same[k] * a.width + c];
      row[c] = total;
    }
    return;
  }
  for (int64_t first = 0; first < a.width; first += kWarp) {
    const int64_t c = first + lane;
    float total = 0;
#pragma unroll 4
    for (int k = warp; k < found; k += kWarps) total += c < a.width ? a.d_out[same[k] * a.width + c] : 0.0f;
    sums[warp][lane] = total;
    __syncthreads();
    if (warp == 0 && c < a.width) {
      for (int w = 1; w < kWarps; ++w) total += sums[w][lane];
      row[c] = total;
    }
    __syncthreads();
  }
}

}  // namespace

int run(const EmbeddingGradientArguments& a, Numbers, void* stream) {
  if (a.lookups == 0) return cudaSuccess;
  embedding_gradient_kernel<<<static_cast<unsigned>(a.lookups), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(a);
  return cudaGetLastError();
}

}  // namespace trainkit::detail::on_gpu
