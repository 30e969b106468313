#pragma once
/// Convolutions by kernels of 3 x 3, or 3 x 3 x kd, on the CPU with 2 to 3 times fewer multiplications than the
/// definition has.
///
/// Results differ from the definition's by rounding: their largest error is about 5 times that of a direct convolution
/// in float32. All memory is float32 and contiguous. Requires has_tile_product(). Runs on LibTorch's threads; results
/// do not depend on their number. Source: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2015;
/// the gradients are the transposed operations.

#include "nn/convolution/image_shape.h"

namespace trainkit::detail {

/// Side of the square of outputs that is computed at once, 2, 3 or 4: the one with the fewest operations for `shape`.
/// Returns 0 if the definition has fewer, or if the kernel is not 3 x 3 along the first two dimensions, the number of
/// kernels is no multiple of 8, or the last dimension is padded.
int64_t winograd_side(const ImageShape& shape);

/// Computes y (images, oh, ow, od, kernels) from x (images, h, w, d, channels), w (3, 3, kd, channels, kernels) and
/// bias (kernels) or null; `relu` replaces negative results by 0. `side` is winograd_side().
void winograd_convolution(const ImageShape& shape, int64_t side, const float* x, const float* w, const float* bias,
                          bool relu, float* y);

/// Computes the gradient of x. `channels` is a multiple of 8.
void winograd_input_gradient(const ImageShape& shape, int64_t side, const float* dy, const float* w, float* dx);

/// Computes the gradient of w.
void winograd_weight_gradient(const ImageShape& shape, int64_t side, const float* x, const float* dy, float* dw);

}  // namespace trainkit::detail
