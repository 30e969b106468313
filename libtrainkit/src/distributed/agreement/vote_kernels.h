#pragma once
/// CUDA kernel of DeviceVotes on plain memory.

namespace trainkit::detail {

/// Sets `*blocked` to 0 if `votes[1]`, ranks that succeeded, is `ranks` and `votes[0]`, their weight, is positive; else
/// to 1. Sets `*correction` to expected / weight, 0 if there is no weight. Returns the cudaError_t of the launch;
/// `stream` is a cudaStream_t.
int launch_decide(const double* votes, double ranks, double expected, float* blocked, float* correction, void* stream);

}  // namespace trainkit::detail
