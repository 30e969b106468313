#include <ATen/TracerMode.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/conv1d.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/conv3d.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/threshold_backward.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "core/device/gpu_operations.h"
#include "core/machine/shapes_only.h"
#include "core/tensors/optional_tensor.h"
#include "core/tensors/recorded.h"
#include "nn/convolution/direct_convolution.h"
#include "nn/convolution/winograd.h"
#include "nn/cpu/tile_product.h"
#include "trainkit/nn/functional.h"

namespace trainkit {

// Note [Shapes of convolutions]
//
// Every convolution becomes one of images (h, w, d, channels), with as few dimensions as possible:
// - A last dimension that the kernel covers (its only output there is one number) is part of the channels: they are
//   neighbours in memory, in the image and in the packed kernels.
// - A first dimension with a kernel of 1 only repeats the image.
// - Kernels of 3 x 3 are along the first two dimensions, where Winograd's algorithm needs them.
// What remains without dimensions is a matrix product. The conversions are views (the packed weight is a small copy),
// so autograd converts the gradients back.

namespace {

using detail::ImageShape;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kLeastMultiplications = 4096;  // of an image; below this, LibTorch's operations are as fast
constexpr int64_t kMostTerms = 4096;             // of a direct convolution: its panels stay in the cache

bool is_wanted() {
  static const bool wanted = [] {
    const char* set = std::getenv("TRAINKIT_CONVOLUTION");
    return !set || std::string_view(set) != "0";
  }();
  return wanted;
}

/// A convolution in the form of Note [Shapes of convolutions].
struct Folded {
  ImageShape shape;
  std::array<int64_t, 3> strides = {1, 1, 1};

  /// Removes dimension 2 and moves the others there.
  void fold_last() {
    shape.channels *= shape.size[2];
    for (auto* values : {&shape.size, &shape.kernel, &shape.padding, &strides}) {
      std::rotate(values->begin(), values->end() - 1, values->end());
    }
    shape.size[0] = shape.kernel[0] = strides[0] = 1;
  }
};

Folded folded(const at::Tensor& input, const at::Tensor& weight, at::IntArrayRef stride, at::IntArrayRef padding) {
  Folded result;
  ImageShape& shape = result.shape;
  shape.images = input.size(0);
  shape.channels = input.size(1);
  shape.kernels = weight.size(0);
  shape.size = shape.kernel = {1, 1, 1};
  const size_t dims = stride.size(), skipped = 3 - dims;
  for (size_t d = 0; d < dims; ++d) {
    shape.size[skipped + d] = input.size(static_cast<int64_t>(2 + d));
    shape.kernel[skipped + d] = weight.size(static_cast<int64_t>(2 + d));
    shape.padding[skipped + d] = padding[d];
    result.strides[skipped + d] = stride[d];
  }
  for (int i = 0; i < 3 && shape.kernel[2] == shape.size[2] && shape.padding[2] == 0; ++i) result.fold_last();
  for (size_t d = 0; d < 3; ++d) {
    if (shape.kernel[d] != 1 || shape.padding[d] != 0 || result.strides[d] != 1) break;
    shape.images *= shape.size[d];
    shape.size[d] = 1;
  }
  if (shape.size[0] == 1 && shape.kernel[0] == 1 && shape.kernel[1] == 3 && shape.kernel[2] == 3 &&
      result.strides[2] == 1) {
    for (auto* values : {&shape.size, &shape.kernel, &shape.padding, &result.strides}) {
      std::rotate(values->begin(), values->begin() + 1, values->end());
    }
  }
  shape.stride = result.strides[2];
  return result;
}

bool is_product(const ImageShape& shape) {
  return shape.size == std::array<int64_t, 3>{1, 1, 1} && shape.kernel == shape.size &&
         shape.padding == std::array<int64_t, 3>{0, 0, 0};
}

bool has_direct(const Folded& conv) {
  const ImageShape& s = conv.shape;
  for (size_t d = 0; d < 3; ++d) {
    if (s.padding[d] >= s.kernel[d]) return false;
  }
  return s.kernels % 8 == 0 && s.kernel_positions() * std::max(s.channels, s.kernels) <= kMostTerms;
}

/// Returns whether our kernels support a convolution whose shapes fit together.
bool has_kernels(const Folded& conv, const at::Tensor& input) {
  const ImageShape& s = conv.shape;
  if (is_product(s)) return true;
  // Nothing here depends on the number of images: parts of a batch give the same bits as the whole.
  if (s.out_positions() * s.kernel_positions() * s.channels * s.kernels < kLeastMultiplications) return false;
  if (conv.strides[0] != 1 || conv.strides[1] != 1) return false;
  const bool needs_gradient = at::GradMode::is_enabled() && input.requires_grad();
  return (!needs_gradient || s.channels % 8 == 0) && (detail::winograd_side(s) > 0 || has_direct(conv));
}

/// Returns whether inputs are computed in float32: always, or under autocast to bfloat16 without AMX, where our kernels
/// are faster than LibTorch's.
bool computes_in_float() {
  static const bool has_amx = detail::has_amx_bfloat16();
  return !at::autocast::is_autocast_enabled(at::kCPU) ||
         (!has_amx && at::autocast::get_autocast_dtype(at::kCPU) == at::kBFloat16);
}

bool is_plain(const at::Tensor& x) { return x.is_cpu() && x.scalar_type() == at::kFloat && x.layout() == at::kStrided; }
/// An input may also be the bfloat16 output of another operation under autocast.
bool is_plain_input(const at::Tensor& x) {
  const bool is_bfloat16 = at::autocast::is_autocast_enabled(at::kCPU) && x.scalar_type() == at::kBFloat16;
  return is_plain(x) || (is_bfloat16 && x.is_cpu() && x.layout() == at::kStrided);
}

bool accepts(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias, at::IntArrayRef stride,
             at::IntArrayRef padding) {
  const int64_t dims = input.dim() - 2;
  if (!is_wanted() || !detail::has_tile_product() || !is_plain_input(input) || !is_plain(weight)) return false;
  if (dims < 1 || dims > 3 || weight.dim() != input.dim() || weight.size(1) != input.size(1)) return false;
  if (static_cast<int64_t>(stride.size()) != dims || static_cast<int64_t>(padding.size()) != dims) return false;
  if (bias.defined() && (!is_plain(bias) || bias.dim() != 1 || bias.size(0) != weight.size(0))) return false;
  for (size_t d = 0; d < stride.size(); ++d) {
    const auto i = static_cast<int64_t>(2 + d);
    if (stride[d] < 1 || padding[d] < 0 || input.size(i) + 2 * padding[d] < weight.size(i)) return false;
  }
  return input.numel() > 0 && weight.numel() > 0 && computes_in_float() && !at::tracer::impl::is_dispatch_enabled() &&
         !detail::GpuOperations::wanted();
}

const float* floats(const at::Tensor& tensor) { return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr; }

ImageShape shape_of(const std::vector<int64_t>& v) {
  return {v[0], v[1], v[2], {v[3], v[4], v[5]}, {v[6], v[7], v[8]}, {v[9], v[10], v[11]}, v[12]};
}
std::vector<int64_t> numbers_of(const ImageShape& s) {
  return {s.images,    s.channels,  s.kernels,    s.size[0],    s.size[1],    s.size[2], s.kernel[0],
          s.kernel[1], s.kernel[2], s.padding[0], s.padding[1], s.padding[2], s.stride};
}

/// x (images, h, w, d, channels), weight (kh, kw, kd, channels, kernels) to (images, oh, ow, od, kernels), contiguous.
struct ConvolutionFunction : torch::autograd::Function<ConvolutionFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const detail::OptionalTensor& bias, const ImageShape& s, bool relu) {
    const auto [oh, ow, od] = s.out();
    at::Tensor y = at::empty({s.images, oh, ow, od, s.kernels}, x.options());
    const float* offsets = bias ? floats(*bias) : nullptr;
    detail::recorded("trainkit::convolution", {weight, y, x}, [&] {
      if (detail::shapes_only()) return y;
      if (const int64_t side = detail::winograd_side(s)) {
        detail::winograd_convolution(s, side, floats(x), floats(weight), offsets, relu, y.mutable_data_ptr<float>());
      } else {
        detail::direct_convolution(s, floats(x), floats(weight), offsets, relu, y.mutable_data_ptr<float>());
      }
      return y;
    });
    context->saved_data["numbers"] = numbers_of(s);
    context->saved_data["has_bias"] = bias.has_value();
    context->save_for_backward({x, weight, relu ? y : at::Tensor()});
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &y = saved[2];
    const ImageShape s = shape_of(context->saved_data["numbers"].toIntVector());
    if (at::GradMode::is_enabled()) return differentiable_gradients(context, gradients[0], saved, s);
    at::Tensor dy = gradients[0].contiguous();
    if (y.defined()) dy = at::threshold_backward(dy, y, 0);
    const int64_t side = detail::winograd_side(s);
    at::Tensor dx, d_weight, d_bias;
    if (context->needs_input_grad(0)) {
      dx = at::empty(x.sizes(), x.options());
      detail::recorded("trainkit::convolution_input_gradient", {weight, dy}, [&] {
        if (detail::shapes_only()) return dx;
        if (side > 0) {
          detail::winograd_input_gradient(s, side, floats(dy), floats(weight), dx.mutable_data_ptr<float>());
        } else {
          detail::direct_input_gradient(s, floats(dy), floats(weight), dx.mutable_data_ptr<float>());
        }
        return dx;
      });
    }
    if (context->needs_input_grad(1)) {
      d_weight = at::empty(weight.sizes(), weight.options());
      detail::recorded("trainkit::convolution_weight_gradient", {weight, dy, x}, [&] {
        if (detail::shapes_only()) return d_weight;
        if (side > 0) {
          detail::winograd_weight_gradient(s, side, floats(x), floats(dy), d_weight.mutable_data_ptr<float>());
        } else {
          detail::direct_weight_gradient(s, floats(x), floats(dy), d_weight.mutable_data_ptr<float>());
        }
        return d_weight;
      });
    }
    if (context->saved_data["has_bias"].toBool()) d_bias = dy.view({-1, s.kernels}).sum(0);
    return {dx, d_weight, d_bias, {}, {}};
  }

  /// The gradients by LibTorch's operation, which has a derivative.
  static variable_list differentiable_gradients(AutogradContext* context, at::Tensor dy, const variable_list& saved,
                                                const ImageShape& s) {
    if (saved[2].defined()) dy = at::threshold_backward(dy, saved[2], 0);
    const bool has_bias = context->saved_data["has_bias"].toBool();
    auto [dx, d_weight, d_bias] = at::convolution_backward(
        dy.movedim(-1, 1), saved[0].movedim(-1, 1), saved[1].permute({4, 3, 0, 1, 2}),
        has_bias ? at::OptionalIntArrayRef(at::IntArrayRef(s.kernels)) : std::nullopt, {1, 1, s.stride}, s.padding,
        {1, 1, 1}, /*transposed=*/false, /*output_padding=*/{0, 0, 0}, /*groups=*/1,
        {context->needs_input_grad(0), context->needs_input_grad(1), has_bias});
    if (dx.defined()) dx = dx.movedim(1, -1);
    if (d_weight.defined()) d_weight = d_weight.permute({2, 3, 4, 1, 0});
    return {dx, d_weight, d_bias, {}, {}};
  }
};

/// Computes a convolution that has_kernels() in float32.
at::Tensor own_convolution(const Folded& conv, const at::Tensor& input, const at::Tensor& weight,
                           const at::Tensor& bias, at::IntArrayRef stride, at::IntArrayRef padding, bool relu) {
  const ImageShape& s = conv.shape;
  std::vector<int64_t> sizes = {input.size(0)};
  for (size_t d = 0; d < stride.size(); ++d) {
    const auto i = static_cast<int64_t>(2 + d);
    sizes.push_back((input.size(i) + 2 * padding[d] - weight.size(i)) / stride[d] + 1);
  }
  sizes.push_back(s.kernels);
  const at::Tensor x = input.to(at::kFloat).movedim(1, -1).contiguous();
  at::Tensor y;
  if (is_product(s)) {
    const at::Tensor matrix = weight.movedim(1, -1).reshape({s.kernels, s.channels});
    y = at::linear(x.view({s.images, s.channels}), matrix, detail::optional(bias));
    if (relu) y = y.relu_();
  } else {
    const at::Tensor packed = weight.movedim(1, -1).movedim(0, -1).contiguous();
    y = ConvolutionFunction::apply(x.view({s.images, s.size[0], s.size[1], s.size[2], s.channels}),
                                   packed.view({s.kernel[0], s.kernel[1], s.kernel[2], s.channels, s.kernels}),
                                   detail::optional(bias), s, relu);
  }
  return y.view(sizes).movedim(-1, 1);
}

/// Calls the functions that autocast knows; at::convolution is not one of them on the CPU.
at::Tensor by_libtorch(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                       at::IntArrayRef stride, at::IntArrayRef padding) {
  if (input.dim() == 5) return at::conv3d(input, weight, bias, stride, padding);
  if (input.dim() == 4) return at::conv2d(input, weight, bias, stride, padding);
  return at::conv1d(input, weight, bias, stride, padding);
}

}  // namespace

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                       at::IntArrayRef stride, at::IntArrayRef padding, bool relu) {
  if (accepts(input, weight, bias, stride, padding)) {
    const Folded conv = folded(input, weight, stride, padding);
    if (has_kernels(conv, input)) {
      const bool is_autocast = at::autocast::is_autocast_enabled(at::kCPU);
      const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
      const at::Tensor y = own_convolution(conv, input, weight, bias, stride, padding, relu);
      return is_autocast ? y.to(at::kBFloat16) : y;
    }
  }
  at::Tensor y = by_libtorch(input, weight, bias, stride, padding);
  return relu ? y.relu_() : y;
}

}  // namespace trainkit
