#pragma once
/// Batch normalisation over the rows of all replicas.

#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <memory>

#include "trainkit/distributed/replica_group.h"

namespace trainkit {

namespace detail {
struct BatchNormHooks;
struct RecordedNodes;
}  // namespace detail

struct SyncBatchNormOptions {
  /// C of an input (N, C, ...).
  int64_t num_features = 0;
  double eps = 1e-5;
  /// Weight of the new batch in the running statistics.
  double momentum = 0.1;
  /// Use the rows of all replicas. false uses only those of each replica, as in torch::nn::BatchNorm;
  /// synchronize_batch_norm changes it later.
  bool synchronize = true;
};

/// Normalises with mean and variance over the rows of all replicas, in forward and in backward. N replicas give the
/// output, the gradient and the running statistics of one model on all rows. Input: (N, C) or (N, C, ...),
/// floating-point, on the CPU or on CUDA. Statistics are float32 (float64 for float64 input). Parameters and buffers
/// are those of BatchNorm ("weight", "bias", "running_mean", "running_var", "num_batches_tracked").
///
/// DeviceReplicator binds each replica's layers to the group of replicas. Unbound, and in evaluation, the layer is an
/// ordinary BatchNorm. In training each forward exchanges 2 C + 1 numbers and each backward 2 C; all replicas make the
/// same calls. If another replica fails, the call throws absl::BadStatusOrAccess. With one value per channel and no
/// other replica, training throws c10::ValueError, as PyTorch does: there is no variance. A frozen layer after a branch
/// that the rows of some replica skip takes part in backward on each replica; on ranks the step ends with dist.peer. A
/// second derivative is that of one model on all rows too; each replica takes it, in the same order of calls. Use at
/// most one replica per GPU: autograd has one backward thread per GPU, so two replicas would deadlock.
///
/// Source: torch.nn.SyncBatchNorm (PyTorch 2.11), which has no CPU kernels and is not in LibTorch.
class SyncBatchNormImpl : public torch::nn::Cloneable<SyncBatchNormImpl> {
 public:
  explicit SyncBatchNormImpl(const SyncBatchNormOptions& options);
  explicit SyncBatchNormImpl(int64_t num_features) : SyncBatchNormImpl(SyncBatchNormOptions{num_features}) {}

  void reset() override;
  at::Tensor forward(const at::Tensor& input);
  /// Computes relu(forward(input) + residual). In training on the CPU with the channels innermost in memory
  /// (channels_last, or 2-D) this is one pass over memory instead of three. `forward` uses the same kernel there.
  /// @param residual shape and dtype of `input`; undefined adds nothing.
  at::Tensor forward_relu(const at::Tensor& input, const at::Tensor& residual = {});

  SyncBatchNormOptions options;
  at::Tensor weight;               // (C)
  at::Tensor bias;                 // (C)
  at::Tensor running_mean;         // (C)
  at::Tensor running_var;          // (C)
  at::Tensor num_batches_tracked;  // () int64

 private:
  friend struct detail::BatchNormHooks;
  at::Tensor normalize(const at::Tensor& input, const at::Tensor& residual, bool relu);
  at::Tensor over_all_replicas(const at::Tensor& input);

  ReplicaGroup* group_ = nullptr;
  int64_t replica_ = 0;
  bool counts_rows_ = true;
  std::shared_ptr<detail::RecordedNodes> nodes_;  // of autograd, see BatchNormHooks; null: not recorded
};
TORCH_MODULE(SyncBatchNorm);

/// Switches every SyncBatchNorm inside `module` to statistics over all replicas, or (false) over its own rows. A layer
/// of LibTorch cannot be replaced inside its owner, so build a convertible model from SyncBatchNorm with synchronize =
/// false. @return the number of layers. Throws c10::ValueError if the module contains a torch::nn::BatchNorm.
int64_t synchronize_batch_norm(torch::nn::Module& module, bool synchronize = true);

}  // namespace trainkit
