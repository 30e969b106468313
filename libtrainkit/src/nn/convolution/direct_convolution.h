#pragma once
/// Convolutions with few channels on the CPU, as products of views of the image: nothing is unfolded in memory.
///
/// All memory is float32 and contiguous. Requires has_tile_product(), and a multiple of 8 columns in each product.
/// Runs on LibTorch's threads; results do not depend on their number.

#include "nn/convolution/image_shape.h"

namespace trainkit::detail {

/// Computes y (images, oh, ow, od, kernels) from x (images, h, w, d, channels), w (kh, kw, kd, channels, kernels) and
/// bias (kernels) or null; `relu` replaces negative results by 0. `kernels` is a multiple of 8.
void direct_convolution(const ImageShape& shape, const float* x, const float* w, const float* bias, bool relu,
                        float* y);

/// Computes the gradient of x. `channels` is a multiple of 8.
void direct_input_gradient(const ImageShape& shape, const float* dy, const float* w, float* dx);

/// Computes the gradient of w. `kernels` is a multiple of 8.
void direct_weight_gradient(const ImageShape& shape, const float* x, const float* dy, float* dw);

}  // namespace trainkit::detail
