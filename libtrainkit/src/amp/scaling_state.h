#pragma once
/// State shared by GradScaler and ScaledOptimizer. Private to amp. See Note [Loss scaling without host reads].

#include <ATen/core/Tensor.h>

#include <memory>

namespace trainkit::detail {

/// A scaler between two calls of update(). Optimizers hold a weak pointer to it: the scaler may be destroyed first.
struct ScalerIteration {
  bool scaled = false;  ///< scale() has been called since the last update().
};

/// Stage of an optimizer in the current iteration of the scaler that last used it.
struct ScalingState {
  enum class Stage { kReady, kUnscaled, kStepped };
  Stage stage = Stage::kReady;
  std::weak_ptr<const ScalerIteration> scaler;
  const char* taken_by = nullptr;  ///< Function that used the gradients before unscale_().
  at::Tensor found_inf;            ///< float32 scalar; keeps its memory between steps.
};

}  // namespace trainkit::detail
