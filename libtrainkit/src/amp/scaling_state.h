#pragma once
/// What GradScaler and ScaledOptimizer know of each other. Private to amp.

#include <ATen/core/Tensor.h>

#include <memory>

namespace trainkit::detail {

/// A scaler between two calls of update(). Optimizers watch it through a weak pointer: a scaler may go before them.
struct ScalerIteration {
  bool scaled = false;  ///< scale() has been called since the last update().
};

/// An optimizer's place in the iteration of the scaler that it was last used with.
struct ScalingState {
  enum class Stage { kReady, kUnscaled, kStepped };
  Stage stage = Stage::kReady;
  std::weak_ptr<const ScalerIteration> scaler;
  const char* taken_by = nullptr;  ///< Who used the gradients as true ones before they were unscaled.
  at::Tensor found_inf;            ///< float32 scalar; its memory is kept from step to step.
};

}  // namespace trainkit::detail
