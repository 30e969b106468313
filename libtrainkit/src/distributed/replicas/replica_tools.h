#pragma once
// Functions shared by the strategies. Internal to DeviceReplicator.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/libtorch/autograd_nodes.h"
#include "distributed/replicas/replica_random.h"
#include "trainkit/distributed/device_replicator.h"

namespace trainkit::detail {

/// Returns parameters, or buffers, with their names. A tensor with two names appears once, under its first name.
std::vector<std::pair<std::string, at::Tensor>> unique_parameters(const torch::nn::Module& module);
std::vector<std::pair<std::string, at::Tensor>> unique_buffers(const torch::nn::Module& module);

/// Returns the parameters that receive gradients, each once.
std::vector<at::Tensor> trained_parameters(const torch::nn::Module& module);

/// Returns the trained parameters with sparse gradients, with their names: weights of Embedding and EmbeddingBag layers
/// with sparse(true), and those of HasSparseGradients.
std::vector<std::pair<std::string, at::Tensor>> sparse_parameters(const torch::nn::Module& module);

/// Returns the buffers that each replica updates by itself in training: all but those of SyncBatchNorm layers that
/// synchronise.
std::vector<at::Tensor> replica_buffers(const torch::nn::Module& module);

/// Returns the nodes of the last forward that wait for other replicas in backward, as edges to them.
torch::autograd::edge_list waiting_nodes(const torch::nn::Module& module);

/// Returns tensors with the same memory whose writes autograd does not count. Players share a graph that other forwards
/// of their step follow: a BatchNorm layer in evaluation mode has saved its buffers in it, and gets the same values.
std::vector<at::Tensor> uncounted(const std::vector<at::Tensor>& buffers);

/// Binds the layers of `module` that use collectives (SyncBatchNorm) to `group`. @return whether there are any.
bool bind_replica(torch::nn::Module& module, ReplicaGroup& group, int64_t replica);

std::vector<at::Tensor> tensors_of(const std::vector<std::pair<std::string, at::Tensor>>& named);

/// Throws the error of a replica that waits for another one, which has failed.
[[noreturn]] void throw_replica_failed();

/// Throws absl::BadStatusOrAccess unless ok.
void throw_status(const absl::Status& status);

/// Seeds the replicas' generators, once per step: a CUDA graph of a step with several runs cannot be seeded in between.
/// The seed is drawn from the default CPU generator, and a replica's number over all processes is added.
class StepSeed {
 public:
  using Replicas = std::vector<std::pair<int64_t, at::Device>>;  // number and device

  /// Draws the seed of a new step and seeds the default generators of the replicas' GPUs.
  void begin(const Replicas& replicas);
  /// Begins a step unless it has begun. Returns the number of the step's next run; the `last` one ends it.
  int64_t next_run(const Replicas& replicas, bool last);
  /// The step begins again with the same seed.
  void restart();
  /// Returns the seed of a replica's CPU generator in a run.
  uint64_t of(int64_t replica, int64_t run) const;

 private:
  uint64_t seed_ = 0;
  int64_t runs_ = 0;
  bool has_begun_ = false;
};

}  // namespace trainkit::detail
