#pragma once
/// The shape of a convolution on the CPU.

#include <array>
#include <cstdint>

namespace trainkit::detail {

/// A convolution of `images` images (h, w, d, channels) with the channels innermost in memory, by kernels
/// (kh, kw, kd, channels, kernels): out (oh, ow, od, kernels). Strides are 1 along h and w.
struct ImageShape {
  int64_t images = 0, channels = 0, kernels = 0;
  std::array<int64_t, 3> size = {}, kernel = {}, padding = {};
  int64_t stride = 1;  // along d

  std::array<int64_t, 3> out() const {
    return {size[0] + 2 * padding[0] - kernel[0] + 1, size[1] + 2 * padding[1] - kernel[1] + 1,
            (size[2] + 2 * padding[2] - kernel[2]) / stride + 1};
  }
  int64_t positions() const { return size[0] * size[1] * size[2]; }
  int64_t out_positions() const { return out()[0] * out()[1] * out()[2]; }
  int64_t kernel_positions() const { return kernel[0] * kernel[1] * kernel[2]; }
};

}  // namespace trainkit::detail
