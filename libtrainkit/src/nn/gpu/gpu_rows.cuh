#pragma once
// Helpers of the row kernels: sums over a block of threads.
#include <cuda_runtime.h>

#include <initializer_list>
#include <type_traits>

#include "core/tensors/gpu_values.cuh"
#include "nn/gpu/gpu_kernels.h"
#include "nn/cpu/row_math.h"

namespace trainkit::detail {

constexpr int kWarp = 32;
constexpr int kMostWarps = 16;  // per block
constexpr int kMostThreads = kWarp * kMostWarps;

/// Computes a b, rounded: the compiler never makes it part of a fused multiply-add. For products that are used twice
/// and must be equal both times.
__device__ inline float product(float a, float b) { return __fmul_rn(a, b); }

/// Merges the values of a warp's threads with merge(a, b), which must be commutative.
template <typename Merge>
__device__ float2 merge_warp(float2 value, Merge merge) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const float2 other = {__shfl_xor_sync(~0u, value.x, distance), __shfl_xor_sync(~0u, value.y, distance)};
    value = merge(value, other);
  }
  return value;
}

__device__ inline float2 added(float2 a, float2 b) { return {a.x + b.x, a.y + b.y}; }

/// Computes two sums over all threads of a block, in a fixed order, so that results are bitwise repeatable.
class BlockReducer {
 public:
  /// @param shared two rows of kMostWarps values.
  __device__ explicit BlockReducer(float2 (*shared)[kMostWarps]) : shared_(shared) {}

  /// Merges the values of all threads with merge(a, b), which must be commutative. Every thread of the block must call
  /// it.
  template <typename Merge>
  __device__ float2 operator()(float2 value, Merge merge) {
    value = merge_warp(value, merge);
    // Two rows alternate: other threads may still read the row of the previous call. A thread that writes that row
    // again has passed the barrier of this call.
    float2* warps = shared_[turn_ ^= 1];
    if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = value;
    __syncthreads();
    value = warps[0];
    for (int warp = 1; warp < static_cast<int>(blockDim.x) / kWarp; ++warp) value = merge(value, warps[warp]);
    return value;
  }

  __device__ float2 sums(float2 value) { return (*this)(value, added); }

 private:
  float2 (*shared_)[kMostWarps];
  int turn_ = 0;
};

/// Returns the number of threads for rows whose threads take `count` values at a time.
inline unsigned threads_for(int64_t width, int count) {
  const int64_t warps = ceil_div(ceil_div(width, count), kWarp);
  return static_cast<unsigned>(kWarp * (warps < kMostWarps ? warps : kMostWarps));
}

inline unsigned blocks_for(int64_t blocks) {
  constexpr int64_t kMost = int64_t{1} << 20;
  return static_cast<unsigned>(blocks < kMost ? blocks : kMost);
}

template <typename T>
bool are_aligned(int count, std::initializer_list<const void*> pointers) {
  for (const void* pointer : pointers) {
    if (reinterpret_cast<uintptr_t>(pointer) % (sizeof(T) * count) != 0) return false;
  }
  return true;
}

/// Calls run(std::integral_constant of the values per load): 16 bytes of the larger type if all rows are aligned to it,
/// else one. Pointers may be null.
template <typename Stream, typename Product, typename Run>
int for_vector_width(int64_t width, std::initializer_list<const void*> stream,
                     std::initializer_list<const void*> product, const Run& run) {
  constexpr int kMany = 16 / (sizeof(Stream) > sizeof(Product) ? sizeof(Stream) : sizeof(Product));
  if (width % kMany == 0 && are_aligned<Stream>(kMany, stream) && are_aligned<Product>(kMany, product)) {
    run(std::integral_constant<int, kMany>{});
  } else {
    run(std::integral_constant<int, 1>{});
  }
  return cudaGetLastError();
}

}  // namespace trainkit::detail
