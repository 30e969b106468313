#include <cuda_runtime.h>

#include <cfloat>
#include <cmath>

#include "core/tensors/gpu_values.cuh"
#include "core/tensors/tensor_list_kernels.h"

namespace trainkit::detail {
namespace {

constexpr int kThreads = 256;

/// The arithmetic of clip_factor() with LibTorch's operations.
__device__ float clip_factor_of(float norm, float max_norm) {
  const float factor = 1.0f / (norm + 1e-6f) * max_norm;
  return factor > 1.0f ? 1.0f : factor;  // NaN stays
}

__device__ bool is_aligned(const void* address, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(address) % bytes == 0;
}

/// Multiplies the block's values in place. Returns whether all results of this thread are finite.
__device__ bool multiply(float* data, int64_t size, float by) {
  bool is_finite = true;
  const auto times = [&](float x) {
    is_finite = is_finite && fabsf(x * by) <= FLT_MAX;
    return x * by;
  };
  const int64_t fours = is_aligned(data, sizeof(float4)) ? size / 4 : 0;
  for (int64_t i = threadIdx.x; i < fours; i += blockDim.x) {
    float4 x = reinterpret_cast<float4*>(data)[i];
    x = {times(x.x), times(x.y), times(x.z), times(x.w)};
    if (by != 1) reinterpret_cast<float4*>(data)[i] = x;
  }
  for (int64_t i = fours * 4 + threadIdx.x; i < size; i += blockDim.x) {
    const float x = times(data[i]);
    if (by != 1) data[i] = x;
  }
  return is_finite;
}

__global__ void scale_kernel(TensorList tensors, Chunks<> chunks, const float* __restrict__ value, float max_norm) {
  const float by = max_norm >= 0 ? clip_factor_of(*value, max_norm) : *value;
  if (by == 1.0f) return;
  const auto [t, begin, size] = chunks.part_of(static_cast<int>(blockIdx.x), tensors.sizes, tensors.count);
  multiply(tensors.data[t] + begin, size, by);
}

__global__ void unscale_kernel(TensorList tensors, Chunks<> chunks, const float* __restrict__ value,
                               float* __restrict__ found_inf) {
  const auto [t, begin, size] = chunks.part_of(static_cast<int>(blockIdx.x), tensors.sizes, tensors.count);
  if (!multiply(tensors.data[t] + begin, size, *value)) *found_inf = 1;  // all that write it write the same
}

/// Returns the sum over the block's threads, to all of them. Always added in the same order.
__device__ float sum_of_block(float value) {
  constexpr int kWarp = 32, kMostWarps = 32;
  __shared__ float warps[kMostWarps];
  for (int distance = kWarp / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(~0u, value, distance);
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  float total = 0;
  for (int warp = 0; warp < static_cast<int>(blockDim.x) / kWarp; ++warp) total += warps[warp];
  return total;
}

__global__ void squares_kernel(TensorList tensors, Chunks<> chunks, float* __restrict__ sums) {
  const auto [t, begin, size] = chunks.part_of(static_cast<int>(blockIdx.x), tensors.sizes, tensors.count);
  const float* const data = tensors.data[t] + begin;
  const bool has_fours = is_aligned(data, sizeof(float4));  // the order of the sum does not depend on it
  const int64_t fours = size / 4;
  float total = 0;
  for (int64_t i = threadIdx.x; i < fours; i += blockDim.x) {
    const float* const four = data + 4 * i;
    const float4 x = has_fours ? *reinterpret_cast<const float4*>(four) : float4{four[0], four[1], four[2], four[3]};
    total += x.x * x.x + x.y * x.y + (x.z * x.z + x.w * x.w);
  }
  for (int64_t i = fours * 4 + threadIdx.x; i < size; i += blockDim.x) total += data[i] * data[i];
  total = sum_of_block(total);
  if (threadIdx.x == 0) sums[blockIdx.x] = total;
}

__global__ void norm_kernel(const float* __restrict__ sums, int64_t count, float* __restrict__ norm) {
  float total = 0;
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) total += sums[i];
  total = sum_of_block(total);
  if (threadIdx.x == 0) *norm = sqrtf(total);
}

__global__ void copy_kernel(CopyList list, Chunks<> chunks, const float* __restrict__ condition) {
  if (condition && *condition == 0) return;
  const auto [t, begin, size] = chunks.part_of(static_cast<int>(blockIdx.x), list.sizes, list.count);
  const char* const from = static_cast<const char*>(list.from[t]) + begin;
  char* const to = static_cast<char*>(list.to[t]) + begin;
  int64_t done = 0;
  if (is_aligned(from, sizeof(int)) && is_aligned(to, sizeof(int))) {
    const int64_t words = size / static_cast<int64_t>(sizeof(int));
    done = words * static_cast<int64_t>(sizeof(int));
    for (int64_t i = threadIdx.x; i < words; i += blockDim.x) {
      reinterpret_cast<int*>(to)[i] = reinterpret_cast<const int*>(from)[i];
    }
  }
  for (int64_t i = done + threadIdx.x; i < size; i += blockDim.x) to[i] = from[i];
}

template <typename To>
__global__ void cast_kernel(CastList tensors, Chunks<> chunks) {
  const auto [t, begin, size] = chunks.part_of(static_cast<int>(blockIdx.x), tensors.sizes, tensors.count);
  const float* const from = tensors.from[t] + begin;
  To* const to = static_cast<To*>(tensors.to[t]) + begin;
  const bool has_fours = is_aligned(from, sizeof(Pack<float, 4>)) && is_aligned(to, sizeof(Pack<To, 4>));
  const int64_t fours = has_fours ? size / 4 : 0;
  for (int64_t i = threadIdx.x; i < fours; i += blockDim.x) {
    float four[4];
    load(from + 4 * i, four);
    store(four, to + 4 * i);
  }
  for (int64_t i = fours * 4 + threadIdx.x; i < size; i += blockDim.x) to[i] = from_float<To>(from[i]);
}

/// Starts a kernel with one block for each chunk of the list.
template <auto kernel, typename List, typename... Arguments>
int launch_chunks(const List& list, void* stream, Arguments... arguments) {
  const Chunks<> chunks = Chunks<>::of(list.sizes, list.count);
  const auto blocks = static_cast<unsigned>(chunks.blocks(list.count));
  if (blocks > 0) kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(list, chunks, arguments...);
  return cudaGetLastError();
}

}  // namespace

int launch_scale(const TensorList& tensors, const float* value, float max_norm, void* stream) {
  return launch_chunks<scale_kernel>(tensors, stream, value, max_norm);
}

int launch_unscale(const TensorList& tensors, const float* value, float* found_inf, void* stream) {
  return launch_chunks<unscale_kernel>(tensors, stream, value, found_inf);
}

int launch_squares(const TensorList& tensors, float* sums, void* stream) {
  return launch_chunks<squares_kernel>(tensors, stream, sums);
}

int launch_norm(const float* sums, int64_t count, float* norm, void* stream) {
  constexpr int kMostThreads = 1024;
  norm_kernel<<<1, kMostThreads, 0, static_cast<cudaStream_t>(stream)>>>(sums, count, norm);
  return cudaGetLastError();
}

int launch_copy(const CopyList& bytes, const float* condition, void* stream) {
  return launch_chunks<copy_kernel>(bytes, stream, condition);
}

int launch_cast(const CastList& tensors, bool to_bfloat16, void* stream) {
  return to_bfloat16 ? launch_chunks<cast_kernel<__nv_bfloat16>>(tensors, stream)
                     : launch_chunks<cast_kernel<__half>>(tensors, stream);
}

}  // namespace trainkit::detail
