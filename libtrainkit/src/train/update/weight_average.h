#pragma once
// Exponential moving averages of a model's weights. Internal to TrainStep.

#include <ATen/core/Tensor.h>

#include <vector>

#include "trainkit/optim/optimizer.h"

namespace trainkit::detail {

/// Averages the parameters of an optimizer: average += (1 - decay) * (weight - average) after each step. The averages
/// have the dtypes and the device of the weights, and start with their values.
/// Source: torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn (PyTorch 2.11).
class WeightAverage {
 public:
  /// Allocates the averages.
  WeightAverage(const Optimizer& optimizer, double decay);
  /// Adds the parameters of a group that the optimizer got later.
  void add(const ParamGroup& group);

  /// Moves the averages, unless the step was skipped: `found_inf` (float32 scalar on the weights' device; undefined if
  /// no step can be skipped) is 1. Does not synchronise and allocates no tensor memory.
  void update(const at::Tensor& found_inf) const;
  /// Copies the values of `other`, which averages another copy of the same weights.
  void assign(const WeightAverage& other) const;

  /// Weights and averages of all parameters, in the same order.
  const std::vector<at::Tensor>& weights() const { return weights_; }
  const std::vector<at::Tensor>& averages() const { return averages_; }

 private:
  /// Tensors of one dtype, the operands of one kernel.
  struct Bucket {
    std::vector<at::Tensor> weights, averages;
  };
  double decay_;
  std::vector<at::Tensor> weights_, averages_;
  std::vector<Bucket> buckets_;
};

}  // namespace trainkit::detail
