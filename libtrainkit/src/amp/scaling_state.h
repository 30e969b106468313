#pragma once
/// State shared by GradScaler and ScaledOptimizer. See Note [Loss scaling without host reads].

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "trainkit/amp/grad_scaler.h"

namespace trainkit::detail {

/// A scaler between two calls of update(). Optimizers hold a weak pointer to it: the scaler may be destroyed first.
struct ScalerIteration {
  bool scaled = false;  ///< scale() has been called since the last update().
};

/// Sums values[i], of the optimizer of replica i, in place over the ranks or replicas among which parameters are
/// divided (Sharding).
using SumOverShards = std::function<void(const std::vector<at::Tensor>& values)>;

/// Stage of an optimizer in the current iteration of the scaler that last used it.
struct ScalingState {
  static const std::shared_ptr<ScalingState>& of(const ScaledOptimizer& optimizer) { return optimizer.scaling_; }

  enum class Stage { kReady, kUnscaled, kStepped };
  Stage stage = Stage::kReady;
  std::weak_ptr<const ScalerIteration> scaler;
  const char* taken_by = nullptr;  ///< Function that used the gradients before unscale_().
  at::Tensor found_inf;            ///< float32 scalar; keeps its memory between steps.
  /// For a number that is computed from all gradients; null for an optimizer that has all parameters.
  SumOverShards sum_over_shards = nullptr;
};

}  // namespace trainkit::detail
