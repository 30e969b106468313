#pragma once
/// The CUDA kernel of Adam and AdamW on plain memory. C++17 without LibTorch, since nvcc compiles it too.

#include <cstdint>

#include "core/tensors/tensor_list_kernels.h"

namespace trainkit::detail {

/// Number of parameters that one launch updates.
constexpr int kMostParameters = 64;

/// Float32 parameters with their gradients and moments, each dense and in the same order in memory.
struct AdamList {
  float* params[kMostParameters];
  const float* gradients[kMostParameters];
  float* exp_avgs[kMostParameters];
  float* exp_avg_sqs[kMostParameters];
  const float* steps[kMostParameters];  // number of the step, from 1
  int64_t sizes[kMostParameters];
  int count = 0;
};

struct AdamArguments {
  float beta1, beta2, eps, weight_decay, lr;
  const float* device_lr;  // replaces lr unless null
  const float* found_inf;  // null, or 1: change nothing
  bool decouples_decay;    // as AdamW
};

/// Updates the parameters and moments. `stream` is a cudaStream_t; returns the cudaError_t of the launch. The
/// arithmetic is that of at::_fused_adam_ and at::_fused_adamw_ on a GPU, and so are the bits, except with Adam's
/// weight decay, whose sums LibTorch's compiled code rounds in two ways. A small model needs less time, as a block
/// takes a thousand values instead of 65,536.
int launch_adam(const AdamList& list, const AdamArguments& arguments, void* stream);

}  // namespace trainkit::detail
