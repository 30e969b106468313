#include "nn/convolution/winograd.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "core/machine/parallel.h"
#include "nn/convolution/convolution_kernels.h"
#include "nn/convolution/winograd_matrices.h"
#include "nn/cpu/tile_product.h"

namespace trainkit::detail {

// Note [Winograd's convolutions]
//
// A convolution by kernels of 3 x 3 (x kd) is computed for squares of M x M outputs along the first two dimensions,
// each from T x T inputs, T = M + 2:
//   y = A^T [(G w G^T) * (B^T x B)] A, summed over the channels (and along kd) before the outer transform.
// The product in the middle is, for each of the T^2 places of a square, a convolution along the third dimension alone:
// a matrix product for each line of a square, or, without a third dimension, for all squares. They have T^2 / M^2
// multiplications per output instead of 9. The transforms are additions and multiplications by small constants, on
// vectors of 8 numbers: the (d, channels) of a position are neighbours.
//
// The gradients are the transposed operations: dy -> A dy A^T, then products with the transposed matrices, then
// x: B (.) B^T added where squares overlap; w: G^T (.) G.
//
// Transformed matrices are kept for a group of images only, so that they stay in the cache. Squares at the border that
// reach over the image's end read zeros, and their surplus outputs are not written.

#if defined(__x86_64__) && defined(__GNUC__)

namespace {

constexpr int64_t kGroupFloats = int64_t{256} << 10;  // of a group's transformed matrices: 1 MB per thread
constexpr int64_t kSumFloats = int64_t{1} << 20;      // the same for the sums over images: 4 MB for all threads
constexpr int64_t kGrain = 512;                       // vectors of weights that are worth a thread

/// W floats; one for channels beyond a multiple of 8.
template <int W>
struct Vector {
  typedef float Type __attribute__((vector_size(W * 4)));
  typedef float Unaligned __attribute__((vector_size(W * 4), aligned(4), may_alias));
};
template <>
struct Vector<1> {
  using Type = float;
  using Unaligned = float;
};

using Buffer = std::unique_ptr<float[]>;
Buffer buffer(int64_t floats) { return Buffer(new float[static_cast<size_t>(floats)]); }

/// A square inside an image (rows, columns, depth) that may reach over its ends.
struct Square {
  int64_t rows, columns, depth;  // of the image; `depth` numbers are neighbours
  int64_t row, column;           // of the square's first position; negative inside the padding

  bool contains(int i, int j) const {
    return row + i >= 0 && row + i < rows && column + j >= 0 && column + j < columns;
  }
  int64_t offset(int i, int j) const { return ((row + i) * columns + column + j) * depth; }
};

template <int N, int W>
TRAINKIT_INLINE void load_square(const Square& square, const float* image, int64_t at,
                                 typename Vector<W>::Type (&out)[N][N]) {
  for (int i = 0; i < N; ++i) {
    for (int j = 0; j < N; ++j) {
      using Unaligned = const typename Vector<W>::Unaligned;
      out[i][j] = square.contains(i, j) ? *reinterpret_cast<Unaligned*>(image + square.offset(i, j) + at)
                                        : typename Vector<W>::Type{};
    }
  }
}

/// Reads (writes) a T x T square whose places are `stride` floats apart.
template <int N, int W>
TRAINKIT_INLINE void gather(const float* from, int64_t stride, typename Vector<W>::Type (&out)[N][N]) {
  for (int f = 0; f < N * N; ++f) {
    out[f / N][f % N] = *reinterpret_cast<const typename Vector<W>::Unaligned*>(from + f * stride);
  }
}
template <int N, int W>
TRAINKIT_INLINE void scatter(const typename Vector<W>::Type (&in)[N][N], int64_t stride, float* to) {
  for (int f = 0; f < N * N; ++f) {
    *reinterpret_cast<typename Vector<W>::Unaligned*>(to + f * stride) = in[f / N][f % N];
  }
}

#define TRAINKIT_AVX2 __attribute__((target("avx2,fma")))

/// The operations for squares of M x M outputs. `places` are T x T matrices, `stride` floats apart.
template <int M>
struct Winograd {
  static constexpr int T = M + 2;
  static constexpr int64_t kPlaces = int64_t{T} * T;
  using Matrices = WinogradMatrices<M>;

  template <int W>
  TRAINKIT_INLINE static void transform_input_part(const Square& square, const float* image, int64_t at, float* places,
                                                   int64_t stride) {
    typename Vector<W>::Type in[T][T], out[T][T];
    load_square<T, W>(square, image, at, in);
    transform<false>(Matrices::kBt, in, out);
    scatter<T, W>(out, stride, places + at);
  }
  /// B^T x B for all channels.
  TRAINKIT_AVX2 static void transform_input(const Square& square, const float* image, float* places, int64_t stride) {
    int64_t at = 0;
    for (; at + 8 <= square.depth; at += 8) {
      transform_input_part<8>(square, image, at, places, stride);
    }
    for (; at < square.depth; ++at) transform_input_part<1>(square, image, at, places, stride);
  }

  /// A^T places A + bias (kernels).
  TRAINKIT_AVX2 static void transform_output(const Square& square, const float* places, int64_t stride, int64_t kernels,
                                             const float* bias, bool relu, float* image) {
    using Unaligned = Vector<8>::Unaligned;
    for (int64_t at = 0; at < square.depth; at += 8) {
      Vector<8>::Type in[T][T], out[M][M];
      gather<T, 8>(places + at, stride, in);
      transform<false>(Matrices::kAt, in, out);
      for (int i = 0; i < M; ++i) {
        for (int j = 0; j < M; ++j) {
          if (!square.contains(i, j)) continue;
          if (bias) out[i][j] += *reinterpret_cast<const Unaligned*>(bias + at % kernels);
          if (relu) out[i][j] = out[i][j] < 0 ? Vector<8>::Type{} : out[i][j];  // keeps NaN
          *reinterpret_cast<Unaligned*>(image + square.offset(i, j) + at) = out[i][j];
        }
      }
    }
  }

  /// A dy A^T.
  TRAINKIT_AVX2 static void transform_output_gradient(const Square& square, const float* image, float* places,
                                                      int64_t stride) {
    for (int64_t at = 0; at < square.depth; at += 8) {
      Vector<8>::Type in[M][M], out[T][T];
      load_square<M, 8>(square, image, at, in);
      transform<true>(Matrices::kAt, in, out);
      scatter<T, 8>(out, stride, places + at);
    }
  }

  /// Adds B places B^T to the image.
  TRAINKIT_AVX2 static void transform_input_gradient(const Square& square, const float* places, int64_t stride,
                                                     float* image) {
    using Unaligned = Vector<8>::Unaligned;
    for (int64_t at = 0; at < square.depth; at += 8) {
      Vector<8>::Type in[T][T], out[T][T];
      gather<T, 8>(places + at, stride, in);
      transform<true>(Matrices::kBt, in, out);
      for (int i = 0; i < T; ++i) {
        for (int j = 0; j < T; ++j) {
          if (!square.contains(i, j)) continue;
          *reinterpret_cast<Unaligned*>(image + square.offset(i, j) + at) += out[i][j];
        }
      }
    }
  }

  /// G w G^T for each element of w (3, 3, size), a multiple of 8: (T^2, size).
  static Buffer transform_weights(const float* w, int64_t size) {
    Buffer places = buffer(kPlaces * size);
    parallel_for(0, size / 8, kGrain, [&](int64_t begin, int64_t end) TRAINKIT_AVX2 {
      for (int64_t at = begin * 8; at < end * 8; at += 8) {
        Vector<8>::Type in[3][3], out[T][T];
        gather<3, 8>(w + at, size, in);
        transform<false>(Matrices::kG, in, out);
        scatter<T, 8>(out, size, places.get() + at);
      }
    });
    return places;
  }

  /// G^T places G: the gradient of w (3, 3, size).
  static void transform_weight_gradient(const float* places, int64_t size, float* dw) {
    parallel_for(0, size / 8, kGrain, [&](int64_t begin, int64_t end) TRAINKIT_AVX2 {
      for (int64_t at = begin * 8; at < end * 8; at += 8) {
        Vector<8>::Type in[T][T], out[3][3];
        gather<T, 8>(places + at, size, in);
        transform<true>(Matrices::kG, in, out);
        scatter<3, 8>(out, size, dw + at);
      }
    });
  }

  /// The squares of the images, numbered image by image, and the sizes of their transformed matrices.
  struct Squares {
    explicit Squares(const ImageShape& shape)
        : s(shape),
          out(shape.out()),
          per_row((out[1] + M - 1) / M),
          per_image((out[0] + M - 1) / M * per_row),
          in_depth(shape.size[2] * shape.channels),
          out_depth(out[2] * shape.kernels),
          terms(shape.kernel[2] * shape.channels) {}

    Square in(int64_t square) const {
      const int64_t i = square % per_image;
      return {s.size[0], s.size[1], in_depth, i / per_row * M - s.padding[0], i % per_row * M - s.padding[1]};
    }
    Square outputs(int64_t square) const {
      const int64_t i = square % per_image;
      return {out[0], out[1], out_depth, i / per_row * M, i % per_row * M};
    }
    int64_t in_offset(int64_t square) const { return square / per_image * s.size[0] * s.size[1] * in_depth; }
    int64_t out_offset(int64_t square) const { return square / per_image * out[0] * out[1] * out_depth; }
    /// Images whose transformed matrices have about `floats` numbers, so that the groups are about equal.
    int64_t group_size(int64_t floats) const {
      const int64_t per = per_image * kPlaces * (in_depth + out_depth), most = std::max<int64_t>(1, floats / per);
      const int64_t groups = (s.images + most - 1) / most;
      return (s.images + groups - 1) / groups;
    }
    /// Calls f(first square, squares) for groups of images, in parallel.
    template <typename F>
    void for_each_group(const F& f) const {
      const int64_t size = group_size(kGroupFloats);
      parallel_for(0, (s.images + size - 1) / size, 1, [&](int64_t begin, int64_t end) {
        for (int64_t group = begin; group < end; ++group) {
          f(group * size * per_image, std::min(size, s.images - group * size) * per_image);
        }
      });
    }

    const ImageShape& s;
    std::array<int64_t, 3> out;
    int64_t per_row, per_image, in_depth, out_depth, terms;
  };

  static void convolution(const ImageShape& s, const float* x, const float* w, const float* bias, bool relu, float* y) {
    const Squares all(s);
    const Buffer weights = transform_weights(w, all.terms * s.kernels);
    std::vector<std::vector<float>> panels(static_cast<size_t>(kPlaces));
    parallel_for(0, kPlaces, 1, [&](int64_t begin, int64_t end) {
      for (int64_t f = begin; f < end; ++f) {
        panels[static_cast<size_t>(f)] = packed_panels(weights.get() + f * all.terms * s.kernels, all.terms, s.kernels);
      }
    });
    all.for_each_group([&](int64_t first, int64_t squares) {
      const Buffer in = buffer(kPlaces * squares * all.in_depth), out = buffer(kPlaces * squares * all.out_depth);
      for (int64_t q = 0; q < squares; ++q) {
        transform_input(all.in(first + q), x + all.in_offset(first + q), in.get() + q * all.in_depth,
                        squares * all.in_depth);
      }
      for (int64_t f = 0; f < kPlaces; ++f) {
        multiply(all, squares, in.get() + f * squares * all.in_depth, panels[static_cast<size_t>(f)],
                 out.get() + f * squares * all.out_depth);
      }
      for (int64_t q = 0; q < squares; ++q) {
        transform_output(all.outputs(first + q), out.get() + q * all.out_depth, squares * all.out_depth, s.kernels,
                         bias, relu, y + all.out_offset(first + q));
      }
    });
  }

  /// Convolves the lines of one place along the third dimension.
  static void multiply(const Squares& all, int64_t squares, const float* in, const std::vector<float>& panels,
                       float* out) {
    const ImageShape& s = all.s;
    const bool is_single = all.out[2] == 1;  // one output for each line: the lines are the rows of one product
    const TileProduct::Piece whole;
    TileProduct product{.row_stride = is_single ? all.in_depth : s.stride * s.channels,
                        .term_stride = 1,
                        .pieces = &whole,
                        .num_pieces = 1,
                        .length = all.terms,
                        .b_stride = 0,
                        .c_stride = s.kernels};
    for_each_panel(s.kernels, [&](int64_t column, int64_t width) {
      product.b_stride = width;
      for (int64_t q = 0; q < (is_single ? 1 : squares); ++q) {
        multiply_panel(product, is_single ? squares : all.out[2], width, in + q * all.in_depth,
                       panels.data() + column * all.terms, nullptr, out + q * all.out_depth + column);
      }
    });
  }

  static void input_gradient(const ImageShape& s, const float* dy, const float* w, float* dx) {
    const Squares all(s);
    const std::vector<float> transposed = transposed_kernels(w, s.kernel_positions(), s.channels, s.kernels);
    const Buffer weights = transform_weights(transposed.data(), all.terms * s.kernels);
    std::vector<std::optional<ReversedKernels>> kernels(static_cast<size_t>(kPlaces));
    parallel_for(0, kPlaces, 1, [&](int64_t begin, int64_t end) {
      for (int64_t f = begin; f < end; ++f) {
        kernels[static_cast<size_t>(f)].emplace(s, 1, weights.get() + f * all.terms * s.kernels);
      }
    });
    const int64_t before = ReversedKernels::zeros_before(s) * s.kernels;
    const int64_t padded = before + all.out_depth + ReversedKernels::zeros_after(s) * s.kernels;
    all.for_each_group([&](int64_t first, int64_t squares) {
      const Buffer in = buffer(kPlaces * squares * all.in_depth);
      std::vector<float> out(static_cast<size_t>(kPlaces * squares * padded));
      for (int64_t q = 0; q < squares; ++q) {
        transform_output_gradient(all.outputs(first + q), dy + all.out_offset(first + q),
                                  out.data() + q * padded + before, squares * padded);
      }
      for (int64_t f = 0; f < kPlaces; ++f) {
        kernels[static_cast<size_t>(f)]->gradient_of_lines(squares, out.data() + f * squares * padded, padded, {0},
                                                           in.get() + f * squares * all.in_depth);
      }
      const int64_t image = s.positions() * s.channels;
      std::fill_n(dx + all.in_offset(first), squares / all.per_image * image, 0.0F);
      for (int64_t q = 0; q < squares; ++q) {
        transform_input_gradient(all.in(first + q), in.get() + q * all.in_depth, squares * all.in_depth,
                                 dx + all.in_offset(first + q));
      }
    });
  }

  /// sums (terms, kernels) = the products of the transposed lines of `in` with those of `out`, at one place. In pieces
  /// that stay in the nearest cache, because the columns of `in` are far apart.
  static void sum_products(const Squares& all, int64_t squares, const float* in, const float* out, bool accumulates,
                           float* sums) {
    constexpr int64_t kTerms = 64, kRows = 12;
    const ImageShape& s = all.s;
    const bool is_single = all.out[2] == 1;  // one output for each line: the lines are the terms of one piece
    const TileProduct::Piece whole;
    TileProduct product{.row_stride = 1,
                        .term_stride = is_single ? all.in_depth : s.stride * s.channels,
                        .pieces = &whole,
                        .num_pieces = 1,
                        .length = all.out[2],
                        .b_stride = s.kernels,
                        .c_stride = s.kernels,
                        .accumulates = accumulates};
    for (int64_t q = 0; q < squares; q += is_single ? kTerms : 1) {
      if (is_single) product.length = std::min(kTerms, squares - q);
      for (int64_t row = 0; row < all.terms; row += kRows) {
        for_each_panel(s.kernels, [&](int64_t column, int64_t width) {
          multiply_panel(product, std::min(kRows, all.terms - row), width, in + q * all.in_depth + row,
                         out + q * all.out_depth + column, nullptr, sums + row * s.kernels + column);
        });
      }
      product.accumulates = true;
    }
  }

  static void weight_gradient(const ImageShape& s, const float* x, const float* dy, float* dw) {
    const Squares all(s);
    const int64_t group = all.group_size(kSumFloats) * all.per_image, size = all.terms * s.kernels;
    const Buffer in = buffer(kPlaces * group * all.in_depth), out = buffer(kPlaces * group * all.out_depth);
    const Buffer sums = buffer(kPlaces * size);
    for (int64_t first = 0; first < s.images * all.per_image; first += group) {
      const int64_t squares = std::min(group, s.images * all.per_image - first);
      parallel_for(0, squares, 1, [&](int64_t begin, int64_t end) {
        for (int64_t q = begin; q < end; ++q) {
          transform_input(all.in(first + q), x + all.in_offset(first + q), in.get() + q * all.in_depth,
                          squares * all.in_depth);
          transform_output_gradient(all.outputs(first + q), dy + all.out_offset(first + q),
                                    out.get() + q * all.out_depth, squares * all.out_depth);
        }
      });
      parallel_for(0, kPlaces, 1, [&](int64_t begin, int64_t end) {
        for (int64_t f = begin; f < end; ++f) {
          sum_products(all, squares, in.get() + f * squares * all.in_depth, out.get() + f * squares * all.out_depth,
                       first > 0, sums.get() + f * size);
        }
      });
    }
    transform_weight_gradient(sums.get(), size, dw);
  }
};

/// Calls f(Winograd<side>()).
template <typename F>
void with_side(int64_t side, const F& f) {
  if (side == 2) return f(Winograd<2>());
  if (side == 3) return f(Winograd<3>());
  f(Winograd<4>());
}

}  // namespace

void winograd_convolution(const ImageShape& shape, int64_t side, const float* x, const float* w, const float* bias,
                          bool relu, float* y) {
  with_side(side, [&](const auto& winograd) { winograd.convolution(shape, x, w, bias, relu, y); });
}

void winograd_input_gradient(const ImageShape& shape, int64_t side, const float* dy, const float* w, float* dx) {
  with_side(side, [&](const auto& winograd) { winograd.input_gradient(shape, dy, w, dx); });
}

void winograd_weight_gradient(const ImageShape& shape, int64_t side, const float* x, const float* dy, float* dw) {
  with_side(side, [&](const auto& winograd) { winograd.weight_gradient(shape, x, dy, dw); });
}

#else

void winograd_convolution(const ImageShape&, int64_t, const float*, const float*, const float*, bool, float*) {}
void winograd_input_gradient(const ImageShape&, int64_t, const float*, const float*, float*) {}
void winograd_weight_gradient(const ImageShape&, int64_t, const float*, const float*, float*) {}

#endif

}  // namespace trainkit::detail
