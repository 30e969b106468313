#include <c10/util/Exception.h>

#include "amp/scaling_state.h"
#include "trainkit/amp/grad_scaler.h"

namespace trainkit {
namespace {

bool in_scaled_iteration(const detail::ScalingState& state) {
  const auto scaler = state.scaler.lock();
  return scaler && scaler->scaled;
}

}  // namespace

ScaledOptimizer::ScaledOptimizer() : scaling_(std::make_shared<detail::ScalingState>()) {}
ScaledOptimizer::ScaledOptimizer(ScaledOptimizer&&) noexcept = default;
ScaledOptimizer& ScaledOptimizer::operator=(ScaledOptimizer&&) noexcept = default;
ScaledOptimizer::~ScaledOptimizer() = default;

void ScaledOptimizer::gradients_taken_as_unscaled(const char* by) {
  if (!scaling_->scaler.expired() && scaling_->stage != detail::ScalingState::Stage::kReady) return;
  TORCH_CHECK(!in_scaled_iteration(*scaling_), by,
              " was called on scaled gradients: call scaler.unscale_(optimizer) before it");
  scaling_->taken_by = by;
}

void ScaledOptimizer::stepped_without_scaler() {
  TORCH_CHECK(!in_scaled_iteration(*scaling_),
              "optimizer.step() was called on gradients of a scaled loss: call scaler.step(optimizer) instead");
  scaling_->taken_by = nullptr;
}

}  // namespace trainkit
