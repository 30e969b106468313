#include "nn/convolution/convolution_kernels.h"

#include <algorithm>

#include "core/machine/parallel.h"

namespace trainkit::detail {

std::vector<int64_t> line_offsets(const ImageShape& shape, int64_t columns, int64_t line) {
  std::vector<int64_t> offsets;
  for (int64_t i = 0; i < shape.kernel[0]; ++i) {
    for (int64_t j = 0; j < shape.kernel[1]; ++j) offsets.push_back((i * columns + j) * line);
  }
  return offsets;
}

std::vector<TileProduct::Piece> pieces_at(const std::vector<int64_t>& offsets, int64_t length) {
  std::vector<TileProduct::Piece> pieces;
  pieces.reserve(offsets.size());
  for (const int64_t offset : offsets) pieces.push_back({offset, static_cast<int64_t>(pieces.size()) * length});
  return pieces;
}

std::vector<float> packed_panels(const float* b, int64_t terms, int64_t columns) {
  std::vector<float> panels(static_cast<size_t>(terms * columns));
  for_each_panel(columns, [&](int64_t column, int64_t width) {
    float* to = panels.data() + column * terms;
    for (int64_t k = 0; k < terms; ++k) std::copy_n(b + k * columns + column, width, to + k * width);
  });
  return panels;
}

std::vector<float> transposed_kernels(const float* w, int64_t matrices, int64_t channels, int64_t kernels) {
  constexpr int64_t kBlock = 16;  // rows that are read together
  std::vector<float> transposed(static_cast<size_t>(matrices * channels * kernels));
  parallel_for(0, matrices, 1, [&](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) {
      const float* from = w + m * channels * kernels;
      float* to = transposed.data() + m * channels * kernels;
      for (int64_t first = 0; first < channels; first += kBlock) {
        for (int64_t k = 0; k < kernels; ++k) {
          for (int64_t c = first; c < std::min(first + kBlock, channels); ++c)
            to[k * channels + c] = from[c * kernels + k];
        }
      }
    }
  });
  return transposed;
}

static int64_t most_reach(const ImageShape& s) { return (s.kernel[2] + s.stride - 1) / s.stride; }

int64_t ReversedKernels::zeros_before(const ImageShape& s) { return most_reach(s) - 1; }

int64_t ReversedKernels::zeros_after(const ImageShape& s) {
  const int64_t last = (s.padding[2] + s.size[2] - 1) / s.stride;
  return std::max<int64_t>(0, last + 1 - s.out()[2]);
}

ReversedKernels::ReversedKernels(const ImageShape& shape, int64_t lines, const float* transposed) : shape_(shape) {
  const int64_t matrix = shape.channels * shape.kernels;
  for (int64_t r = 0; r < shape.stride; ++r) {
    Residue residue;
    residue.reach = std::max<int64_t>(0, (shape.kernel[2] - r + shape.stride - 1) / shape.stride);
    std::vector<float> reversed;
    reversed.reserve(static_cast<size_t>(lines * residue.reach * matrix));
    for (int64_t line = lines - 1; line >= 0; --line) {
      for (int64_t j = residue.reach - 1; j >= 0; --j) {
        const float* from = transposed + (line * shape.kernel[2] + r + shape.stride * j) * matrix;
        reversed.insert(reversed.end(), from, from + matrix);
      }
    }
    residue.panels = packed_panels(reversed.data(), lines * residue.reach * shape.kernels, shape.channels);
    residues_.push_back(std::move(residue));
  }
}

void ReversedKernels::gradient_of_lines(int64_t lines, const float* from, int64_t line_stride,
                                        const std::vector<int64_t>& offsets, float* to) const {
  const ImageShape& s = shape_;
  const bool is_single = s.size[2] == 1;  // one position for each line: the lines are the rows of one product
  for (int64_t first = 0; first < std::min(s.stride, s.size[2]); ++first) {  // positions first, first + stride, ...
    const int64_t padded = s.padding[2] + first;
    const Residue& residue = residues_[static_cast<size_t>(padded % s.stride)];
    const int64_t length = residue.reach * s.kernels;
    const std::vector<TileProduct::Piece> pieces = pieces_at(offsets, length);
    TileProduct product{.row_stride = is_single ? line_stride : s.kernels,
                        .term_stride = 1,
                        .pieces = pieces.data(),
                        .num_pieces = static_cast<int64_t>(pieces.size()),
                        .length = length,
                        .b_stride = 0,
                        .c_stride = is_single ? s.channels : s.stride * s.channels};
    const float* a = from + (padded / s.stride + most_reach(s) - residue.reach) * s.kernels;
    const int64_t rows = is_single ? lines : (s.size[2] - first + s.stride - 1) / s.stride;
    for_each_panel(s.channels, [&](int64_t column, int64_t width) {
      product.b_stride = width;
      const float* panel = residue.panels.data() + column * product.num_pieces * length;
      for (int64_t line = 0; line < (is_single ? 1 : lines); ++line) {
        multiply_panel(product, rows, width, a + line * line_stride, panel, nullptr,
                       to + (line * s.size[2] + first) * s.channels + column);
      }
    });
  }
}

}  // namespace trainkit::detail
