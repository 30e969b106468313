// Compares our kernels, forward and backward, with LibTorch's operations in float64 on the CPU.
#include <ATen/Functions.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/device/gpu_kernel_support.h"
#include "core/device/gpu_operations.h"
#include "nn/gpu/fused_ops.h"
#include "trainkit/amp/autocast.h"
#include "trainkit/imagery/patches.h"
#include "trainkit/nn/functional.h"
#include "trainkit/verify.h"

namespace trainkit::tool {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr char kKernelHint[] =
    "our kernels are wrong on this GPU: send this report to the developers, and do not train on it";

/// Dtypes of the residual stream and of the inputs of matrix products. They differ under autocast.
struct KernelTypes {
  at::ScalarType stream, product;
  const char* name;
  /// Largest allowed error relative to the largest value. Leaves room for a few roundings.
  double bound;
};
constexpr KernelTypes kKernelTypes[] = {{at::kFloat, at::kFloat, "fp32", 5e-6},
                                        {at::kBFloat16, at::kBFloat16, "bf16", 2e-2},
                                        {at::kHalf, at::kHalf, "fp16", 3e-3},
                                        {at::kFloat, at::kBFloat16, "autocast bf16", 2e-2},
                                        {at::kFloat, at::kHalf, "autocast fp16", 3e-3}};

/// Rows and columns: even and odd widths, wider than a warp, wider than a block.
constexpr std::pair<int64_t, int64_t> kKernelSizes[] = {{48, 64}, {7, 17}, {4, 768}, {3, 2049}};

/// Keeps the largest error of one operation per dtype.
class Errors {
 public:
  /// Compares a computed tensor with the exact one. The error is relative to the exact tensor's largest value.
  void compare(const KernelTypes& types, double bound, const at::Tensor& found, const at::Tensor& exact) {
    const double largest = exact.abs().max().clamp_min(1e-3).item<double>();
    const double error = (found.detach().to(at::kCPU, at::kDouble) - exact.detach()).abs().max().item<double>();
    Largest& entry = at(types, bound);
    if (!std::isnan(entry.error) && !(error / largest <= entry.error)) entry.error = error / largest;  // keeps NaN
  }

  Checked result(at::Device device) const {
    bool passed = true;
    std::string text = "largest error";
    nlohmann::ordered_json value;
    for (const auto& [types, bound, error] : entries_) {
      passed = passed && error <= bound;
      text += fmt::format("{} {} {:.2g} (bound {:g})", entries_.data()->types == types ? "" : ",", types->name, error,
                          bound);
      value[types->name] = {{"largest_error", error}, {"bound", bound}};
    }
    if (device.is_cuda() && !has_gpu_kernels(device)) {
      text += "; by LibTorch's operations, as this build has no kernels for this GPU";
    }
    return passed_if(passed, text, value, kKernelHint);
  }

 private:
  struct Largest {
    const KernelTypes* types;
    double bound, error;
  };
  Largest& at(const KernelTypes& types, double bound) {
    for (Largest& entry : entries_) {
      if (entry.types == &types) return entry;
    }
    return entries_.emplace_back(Largest{&types, bound, 0});
  }
  std::vector<Largest> entries_;
};

at::Tensor leaf(at::IntArrayRef sizes, at::ScalarType type, at::Device device) {
  return at::randn(sizes).to(type).to(device).requires_grad_();
}

/// Copies the values as float64 to the CPU.
at::Tensor exact(const at::Tensor& tensor) {
  return tensor.detach().to(at::kCPU, at::kDouble).clone().requires_grad_(tensor.requires_grad());
}
Tensors exact(const Tensors& tensors) {
  Tensors all;
  for (const at::Tensor& tensor : tensors) all.push_back(exact(tensor));
  return all;
}

/// Compares the outputs and the gradients of the inputs, for a random upstream gradient.
void compare(Errors& errors, const KernelTypes& types, double bound, const Tensors& outputs, const Tensors& inputs,
             const Tensors& exact_outputs, const Tensors& exact_inputs) {
  Tensors upstream;
  for (const at::Tensor& output : outputs) {
    upstream.push_back(at::randn(output.sizes()).to(output.scalar_type()).to(output.device()));
  }
  const Tensors gradients = torch::autograd::grad(outputs, inputs, upstream);
  const Tensors expected = torch::autograd::grad(exact_outputs, exact_inputs, exact(upstream));
  for (size_t i = 0; i < outputs.size(); ++i) errors.compare(types, bound, outputs[i], exact_outputs[i]);
  for (size_t i = 0; i < gradients.size(); ++i) errors.compare(types, bound, gradients[i], expected[i]);
}

/// Calls `check` for each dtype and size. With a CPU device it takes the GPU code path.
Checked for_all(at::Device device, const std::function<void(Errors&, const KernelTypes&, int64_t, int64_t)>& check) {
  const trainkit::detail::GpuOperations gpu(device.is_cpu());
  // Takes the once-only warning about missing kernels, so that it is not logged later: the result reports them.
  (void)(device.is_cuda() ? trainkit::detail::missing_kernels_warning(device) : "");
  Errors errors;
  for (const KernelTypes& types : kKernelTypes) {
    const AutocastGuard autocast(device, types.product, types.stream != types.product);
    for (const auto& [rows, width] : kKernelSizes) check(errors, types, rows, width);
  }
  return errors.result(device);
}

}  // namespace

Checked verify_layer_norm(at::Device device) {
  return for_all(device, [&](Errors& errors, const KernelTypes& types, int64_t rows, int64_t width) {
    const Tensors in = {leaf({rows, width}, types.stream, device), leaf({rows, width}, types.product, device),
                        leaf({width}, types.stream, device), leaf({width}, types.stream, device)};
    const auto ours = trainkit::detail::residual_layer_norm(in[0], in[1], {in[2], in[3], 1e-5});
    const Tensors same = exact(in);
    const at::Tensor sum = same[0] + same[1];
    compare(errors, types, types.bound, {ours.sum, ours.normed}, in,
            {sum, at::layer_norm(sum, {width}, same[2], same[3], 1e-5)}, same);
  });
}

Checked verify_gelu(at::Device device) {
  return for_all(device, [&](Errors& errors, const KernelTypes& types, int64_t rows, int64_t width) {
    for (const bool by_tanh : {false, true}) {
      const Tensors in = {leaf({rows, width}, types.product, device), leaf({width}, types.stream, device)};
      const Tensors same = exact(in);
      compare(errors, types, types.bound, {trainkit::detail::bias_gelu(in[0], in[1], by_tanh)}, in,
              {at::gelu(same[0] + same[1], by_tanh ? "tanh" : "none")}, same);
    }
  });
}

Checked verify_cross_entropy(at::Device device) {
  return for_all(device, [&](Errors& errors, const KernelTypes& types, int64_t rows, int64_t classes) {
    const Tensors in = {leaf({rows, classes}, types.product, device)};
    const at::Tensor target = at::randint(classes, {rows}, at::kLong);
    target[0] = -100;  // ignored
    const Tensors same = exact(in);
    compare(errors, types, 2 * types.bound, {cross_entropy(in[0], target.to(device))}, in,
            {at::cross_entropy_loss(same[0], target)}, same);
  });
}

Checked verify_patches(at::Device device) {
  int64_t compared = 0, wrong = 0;
  for (const int64_t bands : {16, 15, 200}) {
    for (const int64_t size : {3, 11}) {
      const int64_t side = 20;
      const at::Tensor image = at::randn({side + size - 1, side + size - 1, bands});
      const at::Tensor pixels = at::randperm(side * side, at::kLong).slice(0, 0, 129).contiguous();
      const at::Tensor orientations = at::arange(pixels.size(0)).remainder(kOrientations).to(at::kByte);
      const at::Tensor expected = gather_patches(image, pixels, size, orientations);
      const at::Tensor found = gather_patches(image.to(device), pixels.to(device), size, orientations.to(device));
      compared += expected.numel();
      wrong += expected.ne(found.cpu()).sum().item<int64_t>();
    }
  }
  return passed_if(wrong == 0, fmt::format("{} of {} values differ from the CPU's", wrong, compared),
                   {{"wrong", wrong}, {"compared", compared}}, kKernelHint);
}

}  // namespace trainkit::tool
