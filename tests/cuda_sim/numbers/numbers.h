#pragma once
// The numbers of LibTorch's operations on a simulated device. Each operation's own CUDA code runs (it allocates, and
// launches kernels that do nothing); then the same operation is queued on the CPU, on the same bytes and the same
// stream.
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <functional>
#include <string>

namespace cuda_sim {

/// Where a random operation begins in its generator's sequence.
struct RandomPlace {
  uint64_t seed = 0, offset = 0;
};

/// An operation that the CPU lacks, or whose randomness is not in a generator argument. Arguments and results are CPU
/// tensors on the device's bytes; runs in the stream's thread.
struct Counterpart {
  const torch::jit::Stack& arguments;
  const std::vector<at::Tensor>& results;
  RandomPlace random;
};

/// nullptr: the CPU's operation of that name computes.
std::function<void(const Counterpart&)> counterpart_of(const std::string& operation);

/// A generator whose numbers depend on the place alone.
at::Generator generator_at(const RandomPlace& place);

}  // namespace cuda_sim
