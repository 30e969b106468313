#pragma once
// Tells when backward has computed a gradient.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "core/libtorch/autograd_nodes.h"

namespace trainkit::detail {

/// Calls `note` each time backward has accumulated a gradient of `parameter`, from autograd's thread, until destroyed.
class GradientHook {
 public:
  GradientHook(const at::Tensor& parameter, std::function<void()> note);
  GradientHook(GradientHook&&) noexcept = default;
  ~GradientHook();

 private:
  NodePointer<torch::autograd::Node> accumulator_;  // kept alive, as the parameter holds it weakly
  uintptr_t key_;
};

/// Lets backward accumulate gradients of `parameter` on the current stream, instead of the one that was current when
/// its accumulator was created. For a parameter whose accumulator is kept (by GradientHook or c10d's Reducer): a
/// capture would fail on the default stream.
void accumulate_on_current_stream(const at::Tensor& parameter);

}  // namespace trainkit::detail
