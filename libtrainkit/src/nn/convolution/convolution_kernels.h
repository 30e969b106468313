#pragma once
/// The kernels of a convolution, packed for products (nn/cpu/tile_product.h).

#include <cstdint>
#include <vector>

#include "nn/convolution/image_shape.h"
#include "nn/cpu/tile_product.h"

namespace trainkit::detail {

/// Offsets of the lines of an image, `columns` of them for each h and `line` floats long, that the kernel's positions
/// (kh, kw) read, from the first one.
std::vector<int64_t> line_offsets(const ImageShape& shape, int64_t columns, int64_t line);

/// The pieces of a product whose A reads `length` terms at each of these offsets.
std::vector<TileProduct::Piece> pieces_at(const std::vector<int64_t>& offsets, int64_t length);

/// Copies b (terms, columns) into panels of contiguous rows. The panel that starts at column c is at c * terms.
std::vector<float> packed_panels(const float* b, int64_t terms, int64_t columns);

/// Copies matrices (channels, kernels) to (kernels, channels).
std::vector<float> transposed_kernels(const float* w, int64_t matrices, int64_t channels, int64_t kernels);

/// The kernels for the gradient of the input along its last dimension.
///
/// Position i of the padded input receives kernel position k from output (i - k) / stride. For the residue
/// r = i % stride these are the k = r + stride j, from the outputs i / stride - j. Each residue is a convolution of the
/// output's gradient, with zeros before and after it, by its own kernels in reversed order.
class ReversedKernels {
 public:
  /// @param transposed (lines, kd, kernels, channels); lines are positions of the kernel along the other dimensions.
  ReversedKernels(const ImageShape& shape, int64_t lines, const float* transposed);

  /// Number of zero positions that the output's gradient needs before it and after it.
  static int64_t zeros_before(const ImageShape& shape);
  static int64_t zeros_after(const ImageShape& shape);

  /// Computes the gradient of `lines` lines of the input, (lines, d, channels). `from` points to the padded gradient of
  /// the output for the first line and the kernel's first line; the next lines are `line_stride` floats further on, and
  /// the kernel's other lines `offsets`.
  void gradient_of_lines(int64_t lines, const float* from, int64_t line_stride, const std::vector<int64_t>& offsets,
                         float* to) const;

 private:
  struct Residue {
    int64_t reach = 0;  // number of kernel positions
    std::vector<float> panels;
  };

  ImageShape shape_;
  std::vector<Residue> residues_;
};

}  // namespace trainkit::detail
