#pragma once
/// Mixed precision as a scope.

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

namespace trainkit {

/// Inside the scope, matrix products and convolutions run in `dtype` and reductions, losses and norms in float32.
///
///   at::Tensor loss;
///   { AutocastGuard amp(device, at::kBFloat16); loss = cross_entropy(model->forward(x), y); }
///   loss.backward();       // outside: each operation's gradient runs in the type its forward ran in
///
/// Guards nest; an inner one may switch autocast off (`enabled = false`) or change the type. Leaving a scope, by an
/// exception too, restores what was set before it. The casts of weights are kept while the outermost scope lasts and
/// freed when it ends, so an optimizer step inside the scope would leave stale ones: cover forward and loss alone.
/// The setting belongs to the calling thread; a thread that is started inside a scope begins without it.
/// Never reads from the device.
///
/// Source: torch.autocast (PyTorch 2.11), whose op lists are used.
class [[nodiscard]] AutocastGuard {
 public:
  /// @param dtype kBFloat16 or kHalf, on the CPU and on CUDA; not looked at if `enabled` is false. Another type is an
  ///   error (c10::TypeError).
  AutocastGuard(at::Device device, at::ScalarType dtype, bool enabled = true);
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
