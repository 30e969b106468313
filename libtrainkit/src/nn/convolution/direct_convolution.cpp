#include "nn/convolution/direct_convolution.h"

#include <algorithm>
#include <array>
#include <vector>

#include "core/machine/parallel.h"
#include "nn/convolution/convolution_kernels.h"
#include "nn/cpu/tile_product.h"

namespace trainkit::detail {

// Note [Convolutions as products of views]
//
// With the channels innermost, the numbers that one position of the kernel's rows and columns reads for one output are
// contiguous: kd * channels of them. The outputs along d read the same memory shifted by stride * channels. An image
// line (fixed h and w) of outputs is therefore a product A B whose A is a view of the image: one piece for each (kh,
// kw), rows `stride * channels` apart. B is the kernels, packed so that a panel of columns is contiguous.
//
// The gradient of the weights is a product with the same view transposed, and the output's gradient as B. The gradient
// of the input is a convolution of the output's gradient, surrounded by zeros, with the kernels reversed.

namespace {

constexpr int64_t kGroups = 16;  // sums of the weights' gradient; fixed, so that bits do not depend on threads

/// An image (h, w, d, channels) with a border of zeros.
class PaddedImage {
 public:
  PaddedImage(const std::array<int64_t, 3>& size, const std::array<int64_t, 3>& before,
              const std::array<int64_t, 3>& after, int64_t channels)
      : size_(size), before_(before), channels_(channels) {
    for (size_t i = 0; i < 3; ++i) whole_[i] = before[i] + size[i] + after[i];
    values_.resize(static_cast<size_t>(whole_[0] * whole_[1] * whole_[2] * channels));
  }

  /// Copies an image into the middle.
  const float* filled(const float* image) {
    const int64_t row = size_[2] * channels_;
    for (int64_t i = 0; i < size_[0]; ++i) {
      for (int64_t j = 0; j < size_[1]; ++j) {
        const int64_t at = ((before_[0] + i) * whole_[1] + before_[1] + j) * whole_[2] + before_[2];
        std::copy_n(image + (i * size_[1] + j) * row, row, values_.data() + at * channels_);
      }
    }
    return values_.data();
  }
  /// Size with the border.
  const std::array<int64_t, 3>& whole() const { return whole_; }

 private:
  std::array<int64_t, 3> size_, before_, whole_ = {};
  int64_t channels_;
  std::vector<float> values_;
};

/// Returns padded copies of images, or the images themselves if there is no padding.
class InputImages {
 public:
  explicit InputImages(const ImageShape& shape)
      : stride_(shape.positions() * shape.channels),
        has_border_(shape.padding != std::array<int64_t, 3>{}),
        image_(has_border_ ? shape.size : std::array<int64_t, 3>{}, shape.padding, shape.padding, shape.channels),
        size_(has_border_ ? image_.whole() : shape.size) {}

  const float* get(const float* x, int64_t n) { return has_border_ ? image_.filled(x + n * stride_) : x + n * stride_; }
  const std::array<int64_t, 3>& size() const { return size_; }

 private:
  int64_t stride_;
  bool has_border_;
  PaddedImage image_;
  std::array<int64_t, 3> size_;
};

}  // namespace

void direct_convolution(const ImageShape& s, const float* x, const float* w, const float* bias, bool relu, float* y) {
  const auto [oh, ow, od] = s.out();
  const int64_t length = s.kernel[2] * s.channels, terms = s.kernel[0] * s.kernel[1] * length;
  const std::vector<float> panels = packed_panels(w, terms, s.kernels);
  parallel_for(0, s.images, 1, [&, oh = oh, ow = ow, od = od](int64_t begin, int64_t end) {
    InputImages images(s);
    const int64_t row = images.size()[2] * s.channels;
    const std::vector<TileProduct::Piece> pieces = pieces_at(line_offsets(s, images.size()[1], row), length);
    TileProduct product{.row_stride = s.stride * s.channels,
                        .term_stride = 1,
                        .pieces = pieces.data(),
                        .num_pieces = static_cast<int64_t>(pieces.size()),
                        .length = length,
                        .b_stride = 0,
                        .c_stride = s.kernels,
                        .has_relu = relu};
    for (int64_t n = begin; n < end; ++n) {
      const float* image = images.get(x, n);
      for (int64_t i = 0; i < oh * ow; ++i) {
        const float* a = image + (i / ow * images.size()[1] + i % ow) * row;
        float* c = y + (n * oh * ow + i) * od * s.kernels;
        for_each_panel(s.kernels, [&](int64_t column, int64_t width) {
          product.b_stride = width;
          multiply_panel(product, od, width, a, panels.data() + column * terms, bias ? bias + column : nullptr,
                         c + column);
        });
      }
    }
  });
}

void direct_input_gradient(const ImageShape& s, const float* dy, const float* w, float* dx) {
  const ReversedKernels kernels(s, s.kernel[0] * s.kernel[1],
                                transposed_kernels(w, s.kernel_positions(), s.channels, s.kernels).data());
  const std::array<int64_t, 3> before = {s.kernel[0] - 1 - s.padding[0], s.kernel[1] - 1 - s.padding[1],
                                         ReversedKernels::zeros_before(s)};
  const std::array<int64_t, 3> after = {before[0], before[1], ReversedKernels::zeros_after(s)};
  parallel_for(0, s.images, 1, [&](int64_t begin, int64_t end) {
    PaddedImage gradient(s.out(), before, after, s.kernels);
    const int64_t columns = gradient.whole()[1], line = gradient.whole()[2] * s.kernels;
    const std::vector<int64_t> offsets = line_offsets(s, columns, line);
    for (int64_t n = begin; n < end; ++n) {
      const float* image = gradient.filled(dy + n * s.out_positions() * s.kernels);
      for (int64_t i = 0; i < s.size[0]; ++i) {
        kernels.gradient_of_lines(s.size[1], image + i * columns * line, line, offsets,
                                  dx + (n * s.size[0] + i) * s.size[1] * s.size[2] * s.channels);
      }
    }
  });
}

void direct_weight_gradient(const ImageShape& s, const float* x, const float* dy, float* dw) {
  const auto [oh, ow, od] = s.out();
  const int64_t length = s.kernel[2] * s.channels, size = s.kernel[0] * s.kernel[1] * length * s.kernels;
  const int64_t groups = std::min(kGroups, s.images);
  std::vector<float> sums(static_cast<size_t>(groups * size));
  parallel_for(0, groups, 1, [&, oh = oh, ow = ow, od = od](int64_t begin, int64_t end) {
    InputImages images(s);
    const int64_t row = images.size()[2] * s.channels;
    const std::vector<int64_t> offsets = line_offsets(s, images.size()[1], row);
    const TileProduct::Piece whole;
    const TileProduct product{.row_stride = 1,
                              .term_stride = s.stride * s.channels,
                              .pieces = &whole,
                              .num_pieces = 1,
                              .length = od,
                              .b_stride = s.kernels,
                              .c_stride = s.kernels,
                              .accumulates = true};
    const auto add_row = [&](const float* image, const float* gradient, int64_t i, float* sum) {
      const float* first = image + (i / ow * images.size()[1] + i % ow) * row;
      for (size_t k = 0; k < offsets.size(); ++k) {
        for_each_panel(s.kernels, [&](int64_t column, int64_t width) {
          multiply_panel(product, length, width, first + offsets[k], gradient + column, nullptr,
                         sum + static_cast<int64_t>(k) * length * s.kernels + column);
        });
      }
    };
    for (int64_t group = begin; group < end; ++group) {
      for (int64_t n = s.images * group / groups; n < s.images * (group + 1) / groups; ++n) {
        const float* image = images.get(x, n);
        for (int64_t i = 0; i < oh * ow; ++i) {
          add_row(image, dy + (n * oh * ow + i) * od * s.kernels, i, sums.data() + group * size);
        }
      }
    }
  });
  std::copy_n(sums.data(), size, dw);
  for (int64_t group = 1; group < groups; ++group) {
    for (int64_t i = 0; i < size; ++i) dw[i] += sums[static_cast<size_t>(group * size + i)];
  }
}

}  // namespace trainkit::detail
