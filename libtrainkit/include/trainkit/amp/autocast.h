#pragma once
/// Mixed precision in a scope.

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

namespace trainkit {

/// Enables autocast in a scope: matrix products and convolutions run in `dtype`; reductions, losses and norms in
/// float32.
///
///   at::Tensor loss;
///   { AutocastGuard amp(device, at::kBFloat16); loss = cross_entropy(model->forward(x), y); }
///   loss.backward();       // outside: the gradient of each operation runs in the dtype of its forward
///
/// Guards nest; an inner guard may disable autocast (`enabled = false`) or change the dtype. The end of the scope, also
/// by an exception, restores the previous setting. Casts of weights are cached until the outermost scope ends. An
/// optimizer step inside the scope would make them stale, so cover only forward and loss. The setting is per thread; a
/// thread started inside a scope begins without it. The cache is one of the process: the end of a thread's outermost
/// scope clears it for all, so that the gradient of a weight that is used twice rounds differently from run to run.
/// Disable it where threads train side by side, as TrainStep does for replicas. Never reads from the device.
///
/// Source: torch.autocast (PyTorch 2.11); uses its op lists.
class [[nodiscard]] AutocastGuard {
 public:
  /// @param dtype kBFloat16 or kHalf, on the CPU and on CUDA; ignored if `enabled` is false. Throws c10::TypeError for
  ///   another dtype.
  AutocastGuard(at::Device device, at::ScalarType dtype, bool enabled = true, bool cache_enabled = true);
  ~AutocastGuard();
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  at::DeviceType device_type_;
  at::ScalarType previous_dtype_;
  bool previous_enabled_;
  bool previous_cache_enabled_;
};

}  // namespace trainkit
