#pragma once
/// The CUDA kernel of RMSprop on plain memory. C++17 without LibTorch, since nvcc compiles it too.

#include <cstdint>

#include "core/tensors/tensor_list_kernels.h"

namespace trainkit::detail {

/// Number of parameters that one launch updates.
constexpr int kMostRMSpropParameters = 64;

/// Float32 parameters with their gradients and state, each dense and in the same order in memory.
struct RMSpropList {
  float* params[kMostRMSpropParameters];
  const float* gradients[kMostRMSpropParameters];
  float* square_avgs[kMostRMSpropParameters];
  float* momentum_buffers[kMostRMSpropParameters];  // null without momentum
  float* grad_avgs[kMostRMSpropParameters];         // null unless centered
  int64_t sizes[kMostRMSpropParameters];
  int count = 0;
};

struct RMSpropArguments {
  float alpha, eps, weight_decay, momentum, lr;
  const float* device_lr;  // replaces lr unless null
  const float* found_inf;  // null, or 1: change nothing
};

/// Updates the parameters and their state. `stream` is a cudaStream_t; returns the cudaError_t of the launch.
int launch_rmsprop(const RMSpropList& list, const RMSpropArguments& arguments, void* stream);

}  // namespace trainkit::detail
