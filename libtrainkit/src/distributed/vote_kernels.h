#pragma once
/// CUDA kernels of DeviceVotes on plain memory. They return the cudaError_t of the launch; `stream` is a cudaStream_t.

#include <cstdint>

namespace trainkit::detail {

/// Number of tensors that one launch_scale() takes.
constexpr int kMostScaled = 128;

struct ScaledTensors {
  float* data[kMostScaled];
  int64_t sizes[kMostScaled];
  int count = 0;
};

/// Multiplies the tensors by `*factor` in place. Ends at once if the factor is 1.
int launch_scale(const ScaledTensors& tensors, const float* factor, void* stream);

/// Sets `*blocked` to 0 if `votes[1]`, ranks that succeeded, is `ranks` and `votes[0]`, their weight, is positive; else
/// to 1. Sets `*correction` to expected / weight, 0 if there is no weight.
int launch_decide(const double* votes, double ranks, double expected, float* blocked, float* correction, void* stream);

}  // namespace trainkit::detail
