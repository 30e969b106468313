#pragma once
/// Running mean and variance of observations.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <vector>

namespace trainkit {

class ProcessGroup;

struct RunningNormalizerOptions {
  /// Shape of one row; each of its numbers has statistics of its own.
  std::vector<int64_t> shape = {};
  /// Added to the variance.
  double eps = 1e-8;
  /// Largest magnitude of the output; 0 does not limit it.
  double clip = 10;
};

/// Normalises rows by the mean and the variance of all rows that update() has seen; before the first ones it changes
/// nothing. A submodule of the model: the statistics are its buffers ("mean", "variance", "count", float64), so
/// checkpoints, replicas and ActorModel have them.
///
/// Sources: Chan, Golub, LeVeque 1979, "Updating formulae and a pairwise algorithm for computing sample variances", eq.
/// 2.1, for the merge; eps and clip as VecNormalize of stable-baselines3, whose RunningMeanStd starts with a count of
/// 1e-4 instead of 0.
class RunningNormalizerImpl : public torch::nn::Cloneable<RunningNormalizerImpl> {
 public:
  explicit RunningNormalizerImpl(const RunningNormalizerOptions& options);

  void reset() override;
  /// Returns clamp((rows - mean) / sqrt(variance + eps), -clip, clip) of rows (..., shape...), in their dtype. No
  /// gradient flows to the statistics.
  at::Tensor forward(const at::Tensor& rows) const;
  /// Adds rows (..., shape...) to the statistics, with `group` those of all ranks: each rank calls it, with its own
  /// rows, none included, and all get the same bits. Call it where rows are collected, on module(0) of several
  /// replicas, not in a loss, which a retried step calls twice. Does not synchronise the device. Errors are those of
  /// the group.
  absl::Status update(const at::Tensor& rows, ProcessGroup* group = nullptr);

  RunningNormalizerOptions options;
  at::Tensor mean, variance;  // (shape...)
  at::Tensor count;           // scalar
};
TORCH_MODULE(RunningNormalizer);

}  // namespace trainkit
