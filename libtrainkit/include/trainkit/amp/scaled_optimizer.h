#pragma once
/// What GradScaler asks of an optimizer.

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace trainkit {

namespace detail {
struct ScalingState;
}

/// An optimizer whose step can be skipped on the device. trainkit::Optimizer is one; derive from this only to use
/// GradScaler with an optimizer that is built on nothing of ours.
class ScaledOptimizer {
 public:
  virtual ~ScaledOptimizer();

  /// The gradients of the parameters that have one now; dense, all on one device.
  virtual std::vector<at::Tensor> gradients() const = 0;

  /// One optimizer step with the gradients as they are.
  virtual void step() = 0;

  /// The same unless `found_inf` (float32 scalar on the gradients' device, exactly 0 or 1) is 1: then nothing changes.
  /// Decided on the device; the host does not learn which.
  virtual void step_unless(const at::Tensor& found_inf) = 0;

  /// To be called by whatever takes the gradients for the true ones (clipping): an error if a GradScaler has scaled
  /// them and not unscaled them yet. If that shows only afterwards, unscale_() and step() of the scaler are the error.
  void gradients_taken_as_unscaled(const char* by);

 protected:
  ScaledOptimizer();
  ScaledOptimizer(ScaledOptimizer&&) noexcept;
  ScaledOptimizer& operator=(ScaledOptimizer&&) noexcept;

  /// To be called by step(): an error while a GradScaler is between its scale() and its update() on this optimizer.
  void stepped_without_scaler();

 private:
  friend class GradScaler;
  std::shared_ptr<detail::ScalingState> scaling_;
};

}  // namespace trainkit
