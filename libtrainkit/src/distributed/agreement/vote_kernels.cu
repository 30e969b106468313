// Kernel of DeviceVotes.
#include <cuda_runtime.h>

#include "distributed/agreement/vote_kernels.h"

namespace trainkit::detail {
namespace {

__global__ void decide_kernel(const double* __restrict__ votes, double ranks, double expected, float* blocked,
                              float* correction) {
  const double weight = votes[0];
  *blocked = votes[1] == ranks && weight > 0 ? 0.0f : 1.0f;
  *correction = weight > 0 ? static_cast<float>(expected / weight) : 0.0f;
}

}  // namespace

int launch_decide(const double* votes, double ranks, double expected, float* blocked, float* correction, void* stream) {
  decide_kernel<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(votes, ranks, expected, blocked, correction);
  return cudaGetLastError();
}

}  // namespace trainkit::detail
