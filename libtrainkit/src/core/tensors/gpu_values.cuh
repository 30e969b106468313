#pragma once
// Helpers of kernels: values of any dtype as float32, loaded and stored several at a time.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

namespace trainkit::detail {

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float to_float(__half x) { return __half2float(x); }

template <typename T>
__device__ inline T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ inline __half from_float<__half>(float x) {
  return __float2half_rn(x);
}

/// Values that are loaded and stored together.
template <typename T, int count>
struct alignas(sizeof(T) * count) Pack {
  T values[count];
};

template <typename T, int count>
__device__ inline void load(const T* from, float (&to)[count]) {
  const auto pack = *reinterpret_cast<const Pack<T, count>*>(from);
#pragma unroll
  for (int k = 0; k < count; ++k) to[k] = to_float(pack.values[k]);
}

template <typename T, int count>
__device__ inline void store(const float (&from)[count], T* to) {
  Pack<T, count> pack;
#pragma unroll
  for (int k = 0; k < count; ++k) pack.values[k] = from_float<T>(from[k]);
  *reinterpret_cast<Pack<T, count>*>(to) = pack;
}

}  // namespace trainkit::detail
