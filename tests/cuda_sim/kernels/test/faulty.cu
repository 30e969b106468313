// Kernels with faults, and one that uses every warp exchange operation.
#include <cuda_runtime.h>

#include "faulty.h"

namespace {

__global__ void divergent_kernel(float* x) {
  if (threadIdx.x < 16) {
    __syncthreads();
  } else {
    x[threadIdx.x] = __shfl_xor_sync(~0u, 1.0f, 1);
  }
}

__global__ void overrun_kernel(float* x, int n) {
  if (threadIdx.x == 3) x[n] = 1;
}

__global__ void straddle_kernel(float4* x, int n) { x[n] = make_float4(1, 2, 3, 4); }

__global__ void shared_overrun_kernel(float* x) {
  __shared__ float values[8];
  values[threadIdx.x] = x[0];
  __syncthreads();
  x[0] = values[0];
}

__global__ void dynamic_overrun_kernel(float* x) {
  extern __shared__ float values[];
  values[threadIdx.x] = x[0];
}

__global__ void trap_kernel(float* x) {
  if (blockIdx.x == 1 && threadIdx.x == 5) __trap();
  x[blockIdx.x * blockDim.x + threadIdx.x] = 1;
}

__global__ void missing_lane_kernel(float* x) {
  if (threadIdx.x == 7) return;
  x[threadIdx.x] = __shfl_xor_sync(~0u, 1.0f, 1);
}

__global__ void own_lane_kernel(float* x) { x[threadIdx.x] = __shfl_sync(1u, 1.0f, 0); }

__global__ void faultless_kernel(float* x, int n) {
  x[0] = 1;
  x[1] = x[n];
}

/// Results of each thread: 8 ints.
__global__ void exchange_kernel(int* out, int* sum) {
  const int lane = static_cast<int>(threadIdx.x % 32), id = static_cast<int>(threadIdx.x);
  int* mine = out + threadIdx.x * 8;
  mine[0] = __shfl_sync(~0u, id, 5);
  mine[1] = __shfl_up_sync(~0u, id, 3);
  mine[2] = __shfl_down_sync(~0u, id, 3);
  mine[3] = __shfl_xor_sync(~0u, id, 9);
  mine[4] = __shfl_down_sync(~0u, id, 2, 8);
  mine[5] = static_cast<int>(__ballot_sync(~0u, lane % 3 == 0));
  if (lane < 16) mine[6] = __shfl_sync(0xffffu, id, lane + 1, 16);
  __syncwarp();
  if (threadIdx.x >= 32) return;  // exited threads do not count
  __syncthreads();
  mine[7] = atomicAdd(sum, 1);
}

}  // namespace

void launch(Fault fault, void* x, int n) {
  auto* const floats = static_cast<float*>(x);
  switch (fault) {
    case Fault::kDivergentBarrier:
      divergent_kernel<<<1, 32>>>(floats);
      break;
    case Fault::kOverrun:
      overrun_kernel<<<1, 32>>>(floats, n);
      break;
    case Fault::kStraddle:
      straddle_kernel<<<1, 1>>>(static_cast<float4*>(x), n);
      break;
    case Fault::kSharedOverrun:
      shared_overrun_kernel<<<1, 9>>>(floats);
      break;
    case Fault::kDynamicOverrun:
      dynamic_overrun_kernel<<<1, 9, 32>>>(floats);
      break;
    case Fault::kTrap:
      trap_kernel<<<2, 32>>>(floats);
      break;
    case Fault::kMissingLane:
      missing_lane_kernel<<<1, 32>>>(floats);
      break;
    case Fault::kOwnLane:
      own_lane_kernel<<<1, 32>>>(floats);
      break;
    case Fault::kNone:
      faultless_kernel<<<1, 1>>>(floats, n);
      break;
  }
}

void launch_exchange(int* out, int* sum) { exchange_kernel<<<1, 64>>>(out, sum); }
