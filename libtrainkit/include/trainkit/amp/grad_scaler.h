#pragma once
/// Loss scaling: scales the loss, unscales the gradients and skips steps that overflow, to preserve small fp16
/// gradients.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "trainkit/core/state_dict.h"

namespace trainkit {

// ---- The interface between GradScaler and an optimizer.

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
  friend struct detail::ScalingState;
  std::shared_ptr<detail::ScalingState> scaling_;
};

namespace detail {
struct ScalerIteration;
}

/// PyTorch's names and defaults, plus min_scale and max_scale.
struct GradScalerOptions {
  /// Initial scale; between min_scale and max_scale.
  double init_scale = 65536.0;
  /// Factor applied to the scale after growth_interval consecutive steps without an overflow. Above 1.
  double growth_factor = 2.0;
  /// Factor applied to the scale after a step that overflowed. In (0, 1).
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;
  /// Bounds of the scale. PyTorch has no lower bound: its scale can fall to 0 and stay there.
  double min_scale = 1.0;
  double max_scale = std::numeric_limits<double>::infinity();
  /// If false, every call passes through at no cost.
  bool enabled = true;
};

/// Scales losses without reading from the device.
///
///   scaler.scale(loss).backward();
///   scaler.unscale_(optimizer);            // only if the gradients are used before the step
///   clip_grad_norm_(optimizer, 1.0);
///   scaler.step(optimizer);                // skipped on the device if a gradient is not finite
///   scaler.update();                       // once per iteration, after every optimizer's step
///
/// Any other order throws a c10::Error that names the missing call: clipping before unscale_, unscale_ twice or after
/// step, step twice, optimizer.step() instead of scaler.step(optimizer), any call before scale, update before step.
/// The scale, the overflow flag and the growth counter are on the device of the first scaled loss; only state_dict()
/// reads them. Several losses and several optimizers may share one scaler. One thread.
///
/// Source: torch.amp.GradScaler (PyTorch 2.11), with three differences. The scale has a lower bound. Gradients are
/// checked after unscaling too, so that a tiny scale cannot turn a large gradient into an undetected inf. The fused
/// optimizer, not the host, skips the step.
class GradScaler {
 public:
  /// Throws c10::ValueError if options are out of range; the message names all of them.
  explicit GradScaler(GradScalerOptions options = {});
  GradScaler(GradScaler&&) noexcept;
  GradScaler& operator=(GradScaler&&) noexcept;
  ~GradScaler();

  bool enabled() const { return options_.enabled; }

  /// Returns `loss` times the scale.
  at::Tensor scale(const at::Tensor& loss);

  /// Divides the optimizer's gradients by the scale and records whether one is not finite. Throws c10::ValueError for
  /// float16 gradients, as PyTorch does: keep the parameters in float32.
  void unscale_(ScaledOptimizer& optimizer);
  /// The same for the optimizers of all copies of a model. With sharding each one updates a part, and a gradient that
  /// is not finite counts for all.
  void unscale_(const std::vector<ScaledOptimizer*>& optimizers);

  /// Calls unscale_ if it was not called yet, then applies the optimizer's step unless a gradient was not finite.
  void step(ScaledOptimizer& optimizer);

  /// Updates the scale: lowers it after a skipped step, and raises it after growth_interval steps without one. If
  /// `new_scale` is given, sets the scale to it, or to the nearer one of min_scale and max_scale if it is outside.
  /// Throws c10::ValueError unless it is finite and positive.
  void update(std::optional<double> new_scale = std::nullopt);

  /// Discards the iteration as if scale() had not been called. For a step that is abandoned and retried.
  void abandon();

  /// Returns 1 if a gradient of `optimizer` was not finite in this iteration, else 0: float32 scalar on the device.
  /// Call it after unscale_. The tensor may be written before step(): ranks agree by reducing it with MAX.
  at::Tensor found_inf(const ScaledOptimizer& optimizer) const;

  /// Current scale: float32 scalar on the device; 1 if not enabled; on the CPU before the first scale().
  at::Tensor get_scale() const;

  /// Returns PyTorch's entries: "scale", "growth_factor", "backoff_factor" (double), "growth_interval",
  /// "_growth_tracker" (int64); empty if not enabled. Reads from the device. Call it between update() and scale().
  StateDict state_dict() const;
  /// Does nothing if not enabled. Rejects the state of a disabled scaler and values out of range (exit code 5).
  absl::Status load_state_dict(const StateDict& state);
  /// Changes with each loaded state: an update() captured in a CUDA graph keeps the previous options.
  int64_t version() const { return version_; }

 private:
  struct Unscaling;
  Unscaling prepare_unscaling(ScaledOptimizer& optimizer);
  void unscale(const Unscaling& unscaling) const;
  detail::ScalingState& state_of(ScaledOptimizer& optimizer, const char* caller);
  void create_tensors(at::Device device);
  void set_scale(double scale);
  void scale_changed();
  void begin_iteration();

  GradScalerOptions options_;
  int64_t init_growth_tracker_ = 0;
  int64_t version_ = 0;
  // Tensors on the device; undefined until the first scale().
  at::Tensor scale_;
  at::Tensor growth_tracker_;
  at::Tensor inverse_scale_;
  at::Tensor inverse_scale_double_;
  at::Tensor one_;
  std::shared_ptr<detail::ScalerIteration> iteration_;
  std::vector<std::shared_ptr<detail::ScalingState>> used_;  ///< Optimizers of this iteration.
};

}  // namespace trainkit
