#pragma once
/// The interface between GradScaler and an optimizer.

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace trainkit {

namespace detail {
struct ScalingState;
}

/// Base of optimizers whose step can be skipped on the device. trainkit::Optimizer derives from it. Derive from it
/// directly only to use GradScaler with an optimizer that does not derive from trainkit::Optimizer.
class ScaledOptimizer {
 public:
  virtual ~ScaledOptimizer();

  /// Returns the gradients of the parameters that have one; dense, all on one device.
  virtual std::vector<at::Tensor> gradients() const = 0;

  /// Applies one optimizer step with the gradients as they are.
  virtual void step() = 0;

  /// Applies one step unless `found_inf` (float32 scalar on the gradients' device, exactly 0 or 1) is 1, in which case
  /// nothing changes. The device decides; the host does not learn the result.
  virtual void step_unless(const at::Tensor& found_inf) = 0;

  /// Must be called by functions that treat the gradients as unscaled (clipping). Throws if a GradScaler has scaled
  /// them and not unscaled them yet. If this becomes known only later, the scaler's unscale_() and step() throw.
  void gradients_taken_as_unscaled(const char* by);

 protected:
  ScaledOptimizer();
  ScaledOptimizer(ScaledOptimizer&&) noexcept;
  ScaledOptimizer& operator=(ScaledOptimizer&&) noexcept;

  /// Must be called by step(). Throws if a GradScaler is between scale() and update() for this optimizer.
  void stepped_without_scaler();

 private:
  friend class GradScaler;
  std::shared_ptr<detail::ScalingState> scaling_;
};

}  // namespace trainkit
