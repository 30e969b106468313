#pragma once
// Tells when backward has computed a gradient.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>

namespace torch::autograd {
struct Node;
}

namespace trainkit::detail {

/// Calls `note` each time backward has accumulated a gradient of `parameter`, from autograd's thread, until destroyed.
class GradientHook {
 public:
  GradientHook(const at::Tensor& parameter, std::function<void()> note);
  GradientHook(GradientHook&&) noexcept = default;
  ~GradientHook();

 private:
  std::shared_ptr<torch::autograd::Node> accumulator_;  // kept alive, as the parameter holds it weakly
  uintptr_t key_;
};

}  // namespace trainkit::detail
