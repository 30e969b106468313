#pragma once
/// Batch normalisation over the rows of all replicas.

#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <memory>

#include "trainkit/distributed/replica_group.h"

namespace trainkit {

struct SyncBatchNormOptions {
  /// C of an input (N, C, ...).
  int64_t num_features = 0;
  double eps = 1e-5;
  /// Share of the new batch in the running statistics.
  double momentum = 0.1;
  /// false: the rows of each replica alone, as in torch::nn::BatchNorm; synchronize_batch_norm switches it later.
  bool synchronize = true;
};

/// BatchNorm whose mean and variance are taken over the rows of all replicas, in forward and in backward: N replicas
/// give the output, the gradient and the running statistics of one model on all rows. Input (N, C) or (N, C, ...),
/// floating-point, on the CPU or on CUDA; statistics are float32 (float64 for float64 input). Parameters and buffers
/// are those of BatchNorm ("weight", "bias", "running_mean", "running_var", "num_batches_tracked").
///
/// DeviceReplicator tells each replica's layers who the others are; outside one, and in evaluation, the layer is an
/// ordinary BatchNorm. While training each call exchanges 2 C + 1 numbers, and its backward 2 C; all replicas make the
/// same calls. Where another replica fails, the call throws (absl::BadStatusOrAccess). At most one replica per GPU: two
/// would wait for each other in its one backward thread.
///
/// Source: torch.nn.SyncBatchNorm (PyTorch 2.11), which has no CPU kernels and is not in LibTorch.
class SyncBatchNormImpl : public torch::nn::Cloneable<SyncBatchNormImpl> {
 public:
  explicit SyncBatchNormImpl(const SyncBatchNormOptions& options);
  explicit SyncBatchNormImpl(int64_t num_features) : SyncBatchNormImpl(SyncBatchNormOptions{num_features}) {}

  void reset() override;
  at::Tensor forward(const at::Tensor& input);
  /// relu(forward(input) + residual). While training on the CPU with the channels beside each other in memory
  /// (channels_last, or 2-D) that is one pass over the memory instead of three, which is also what makes `forward` fast
  /// there; then the gradient has no gradient of its own. @param residual of the shape and dtype of `input`; undefined:
  /// nothing is added.
  at::Tensor forward_relu(const at::Tensor& input, const at::Tensor& residual = {});

  /// Called by DeviceReplicator. `group` must outlive every forward in training.
  void bind(ReplicaGroup* group, int64_t replica);

  SyncBatchNormOptions options;
  at::Tensor weight;               // (C)
  at::Tensor bias;                 // (C)
  at::Tensor running_mean;         // (C)
  at::Tensor running_var;          // (C)
  at::Tensor num_batches_tracked;  // () int64

 private:
  at::Tensor normalize(const at::Tensor& input, const at::Tensor& residual, bool relu);
  at::Tensor over_all_replicas(const at::Tensor& input);

  ReplicaGroup* group_ = nullptr;
  int64_t replica_ = 0;
};
TORCH_MODULE(SyncBatchNorm);

/// Lets every SyncBatchNorm inside `module` take its statistics over all replicas, or (false) over its own rows. A
/// layer of LibTorch cannot be exchanged inside its owner: a model that is to be converted is built of ours, with
/// synchronize = false. @return how many there are. Throws c10::ValueError if there is a torch::nn::BatchNorm.
int64_t synchronize_batch_norm(torch::nn::Module& module, bool synchronize = true);

}  // namespace trainkit
