#pragma once
// What the strategies share. Internal to DeviceReplicator.

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "distributed/replica_random.h"
#include "trainkit/distributed/replica_group.h"

namespace trainkit::detail {

/// Parameters, or buffers, under their names; a tensor that has two names counts once, under its first.
std::vector<std::pair<std::string, at::Tensor>> unique_parameters(const torch::nn::Module& module);
std::vector<std::pair<std::string, at::Tensor>> unique_buffers(const torch::nn::Module& module);

/// The buffers that replicas change each for itself while they train: those of no SyncBatchNorm.
std::vector<at::Tensor> own_buffers(const torch::nn::Module& module);

/// Tells the layers of `module` that ask others (SyncBatchNorm) which replica they are. @return whether there are any.
bool bind_replica(torch::nn::Module& module, ReplicaGroup& group, int64_t replica);

/// One draw from the default CPU generator, from which the replicas of a run get their own.
uint64_t draw_seed();

/// What `replica` (of all processes) draws in the run of `seed`: a CPU generator for this thread, and on a GPU the
/// device's own, begun anew.
class ReplicaRandom {
 public:
  ReplicaRandom(uint64_t seed, int64_t replica, at::Device device);

 private:
  ReplicaRandomGuard guard_;
};

}  // namespace trainkit::detail
