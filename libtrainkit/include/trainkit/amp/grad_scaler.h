#pragma once
/// Keeps small float16 gradients from vanishing: scales the loss, unscales the gradients, skips steps that overflowed.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "trainkit/amp/scaled_optimizer.h"
#include "trainkit/core/state_dict.h"

namespace trainkit {

namespace detail {
struct ScalerIteration;
}

/// PyTorch's names and defaults, and two limits that it lacks.
struct GradScalerOptions {
  /// Scale of the first iteration; between min_scale and max_scale.
  double init_scale = 65536.0;
  /// Multiplies the scale after growth_interval steps in a row without an overflow. Above 1.
  double growth_factor = 2.0;
  /// Multiplies the scale after a step that overflowed. In (0, 1).
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;
  /// The scale never leaves [min_scale, max_scale]. PyTorch has no floor: there the scale can fall to 0 and stay.
  double min_scale = 1.0;
  double max_scale = std::numeric_limits<double>::infinity();
  /// false: every call passes through at no cost.
  bool enabled = true;
};

/// Loss scaling that stays on the device.
///
///   scaler.scale(loss).backward();
///   scaler.unscale_(optimizer);            // only if the gradients are looked at before the step
///   clip_grad_norm_(optimizer, 1.0);
///   scaler.step(optimizer);                // skipped on the device if a gradient is not finite
///   scaler.update();                       // once per iteration, after every optimizer's step
///
/// Any other order is an error (c10::Error) that says which call is missing: clipping before unscale_, unscale_ twice
/// or after step, step twice, optimizer.step() instead of scaler.step(optimizer), anything before scale, update before
/// step. The scale, the overflow flag and the counter live on the device of the first scaled loss; no call but
/// state_dict() reads from it. Several losses and several optimizers may share one scaler. One thread.
///
/// Source: torch.amp.GradScaler (PyTorch 2.11), with three differences: the scale has a floor; gradients are checked as
/// they are after unscaling, so that a tiny scale cannot turn a large gradient into an inf unseen; the step is skipped
/// by the fused optimizer and not by the host.
class GradScaler {
 public:
  /// Bad options are errors (c10::ValueError); all are named at once.
  explicit GradScaler(GradScalerOptions options = {});
  GradScaler(GradScaler&&) noexcept;
  GradScaler& operator=(GradScaler&&) noexcept;
  ~GradScaler();

  bool enabled() const { return options_.enabled; }

  /// `loss` times the scale.
  at::Tensor scale(const at::Tensor& loss);

  /// Divides the optimizer's gradients by the scale and notes whether one is not finite. Float16 gradients are an error
  /// (c10::ValueError), as in PyTorch: keep the parameters in float32.
  void unscale_(ScaledOptimizer& optimizer);

  /// unscale_ if that has not been done, then the optimizer's step unless a gradient was not finite.
  void step(ScaledOptimizer& optimizer);

  /// Moves the scale: down if a step was skipped, up after growth_interval steps without. Or sets it to `new_scale`.
  void update(std::optional<double> new_scale = std::nullopt);

  /// Forgets the iteration as if scale() had not been called: for a step that is given up half way and tried again.
  void abandon();

  /// 1 if a gradient of `optimizer` was not finite in this iteration, else 0: float32 scalar, on the device, to be
  /// called after unscale_. It may be written before step(): ranks agree by reducing it with MAX.
  at::Tensor found_inf(const ScaledOptimizer& optimizer) const;

  /// The scale now: float32 scalar on the device, 1 if not enabled, on the CPU before the first scale().
  at::Tensor get_scale() const;

  /// PyTorch's entries: "scale", "growth_factor", "backoff_factor" (double), "growth_interval", "_growth_tracker"
  /// (int64); none if not enabled. Reads from the device. To be called between update() and scale().
  StateDict state_dict() const;
  /// Does nothing if not enabled. Refuses a state of a scaler that was not, and values out of range (exit code 5).
  absl::Status load_state_dict(const StateDict& state);
  /// Another number after each state that was loaded: a captured update() has the options of before.
  int64_t version() const { return version_; }

 private:
  detail::ScalingState& state_of(ScaledOptimizer& optimizer, const char* caller);
  void create_tensors(at::Device device);
  void set_scale(double scale);
  void scale_changed();
  void begin_iteration();

  GradScalerOptions options_;
  int64_t init_growth_tracker_ = 0;
  int64_t version_ = 0;
  // On the device; undefined until the first scale().
  at::Tensor scale_;
  at::Tensor growth_tracker_;
  at::Tensor inverse_scale_;
  at::Tensor inverse_scale_double_;
  at::Tensor one_;
  std::shared_ptr<detail::ScalerIteration> iteration_;
  std::vector<std::shared_ptr<detail::ScalingState>> used_;  ///< Optimizers of this iteration.
};

}  // namespace trainkit
