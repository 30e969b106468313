#pragma once
// Functions shared by the strategies. Internal to DeviceReplicator.

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "distributed/replica_random.h"
#include "trainkit/distributed/device_replicator.h"

namespace trainkit::detail {

/// Returns parameters, or buffers, with their names. A tensor with two names appears once, under its first name.
std::vector<std::pair<std::string, at::Tensor>> unique_parameters(const torch::nn::Module& module);
std::vector<std::pair<std::string, at::Tensor>> unique_buffers(const torch::nn::Module& module);

/// Returns the parameters that receive gradients, each once.
std::vector<at::Tensor> trained_parameters(const torch::nn::Module& module);

/// Returns the dtype in which `gradients` are sent; nullopt: their own.
std::optional<at::ScalarType> wire_type(GradientCompression compression, const at::Tensor& gradients);

/// Returns the buffers that each replica updates by itself in training: all but those of SyncBatchNorm layers that
/// synchronise.
std::vector<at::Tensor> replica_buffers(const torch::nn::Module& module);

/// Binds the layers of `module` that use collectives (SyncBatchNorm) to `group`. @return whether there are any.
bool bind_replica(torch::nn::Module& module, ReplicaGroup& group, int64_t replica);

/// Draws a seed from the default CPU generator, from which run() derives the generators of the replicas.
uint64_t draw_seed();

/// Seeds the generators of `replica` (numbered over all processes) from `seed`: a CPU generator for this thread and, on
/// a GPU, the device's default generator.
class ReplicaRandom {
 public:
  ReplicaRandom(uint64_t seed, int64_t replica, at::Device device);

 private:
  ReplicaRandomGuard guard_;
};

}  // namespace trainkit::detail
