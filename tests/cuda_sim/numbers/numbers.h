#pragma once
// The values of LibTorch's operations on a simulated device. Each operation's own CUDA code runs (it allocates, and
// launches kernels that do nothing); then the same operation is queued on the CPU, with the same bytes and the same
// stream.
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <functional>
#include <string>

namespace cuda_sim {

/// The position of a random operation in its generator's sequence.
struct RandomPlace {
  uint64_t seed = 0, offset = 0;
};

/// An operation that the CPU lacks, or that draws random numbers without a generator argument. Arguments and results
/// are CPU tensors over the device's bytes; runs in the stream's thread.
struct Counterpart {
  const torch::jit::Stack& arguments;
  const std::vector<at::Tensor>& results;
  RandomPlace random;
};

/// nullptr: the CPU's operation with that name computes.
std::function<void(const Counterpart&)> counterpart_of(const std::string& operation);

/// A generator whose numbers depend only on the position.
at::Generator generator_at(const RandomPlace& place);

}  // namespace cuda_sim
