#pragma once
/// The transforms of Winograd's convolutions F(m x m, 3 x 3), for blocks of vectors.

#include "trainkit/core/vectorized.h"

namespace trainkit::detail {

/// Matrices of F(m, 3): the convolution of m + 2 numbers d with 3 numbers g is A^T ((G g) * (B^T d)), with an
/// elementwise product. They evaluate and interpolate polynomials at 0, 1, -1, then 2 and -2, and infinity. Source:
/// Lavin and Gray (2015) for m = 2 and 4; the same construction (Cook and Toom) for m = 3.
template <int M>
struct WinogradMatrices;

template <>
struct WinogradMatrices<2> {
  static constexpr float kBt[4][4] = {{1, 0, -1, 0}, {0, 1, 1, 0}, {0, -1, 1, 0}, {0, -1, 0, 1}};
  static constexpr float kG[4][3] = {{1, 0, 0}, {.5F, .5F, .5F}, {.5F, -.5F, .5F}, {0, 0, 1}};
  static constexpr float kAt[2][4] = {{1, 1, 1, 0}, {0, 1, -1, 1}};
};

template <>
struct WinogradMatrices<3> {
  static constexpr float kBt[5][5] = {
      {2, -1, -2, 1, 0}, {0, -2, -1, 1, 0}, {0, 2, -3, 1, 0}, {0, -1, 0, 1, 0}, {0, 2, -1, -2, 1}};
  static constexpr float kG[5][3] = {
      {.5F, 0, 0}, {-.5F, -.5F, -.5F}, {-1.F / 6, 1.F / 6, -1.F / 6}, {1.F / 6, 1.F / 3, 2.F / 3}, {0, 0, 1}};
  static constexpr float kAt[3][5] = {{1, 1, 1, 1, 0}, {0, 1, -1, 2, 0}, {0, 1, 1, 4, 1}};
};

template <>
struct WinogradMatrices<4> {
  static constexpr float kBt[6][6] = {{4, 0, -5, 0, 1, 0},  {0, -4, -4, 1, 1, 0}, {0, 4, -4, -1, 1, 0},
                                      {0, -2, -1, 2, 1, 0}, {0, 2, -1, -2, 1, 0}, {0, 4, 0, -5, 0, 1}};
  static constexpr float kG[6][3] = {{.25F, 0, 0},
                                     {-1.F / 6, -1.F / 6, -1.F / 6},
                                     {-1.F / 6, 1.F / 6, -1.F / 6},
                                     {1.F / 24, 1.F / 12, 1.F / 6},
                                     {1.F / 24, -1.F / 12, 1.F / 6},
                                     {0, 0, 1}};
  static constexpr float kAt[4][6] = {
      {1, 1, 1, 1, 1, 0}, {0, 1, -1, 2, -2, 0}, {0, 1, 1, 4, 4, 0}, {0, 1, -1, 8, -8, 1}};
};

/// Coefficient (i, j) of a matrix, or of its transpose.
template <bool Transposed, int Rows, int Columns>
TRAINKIT_INLINE constexpr float coefficient(const float (&matrix)[Rows][Columns], int i, int j) {
  return Transposed ? matrix[j][i] : matrix[i][j];
}

/// Computes out = L in L^T, with L a constant matrix (P, Q), or its transpose if `Transposed`. The loops are unrolled,
/// so that zeros cost nothing.
template <bool Transposed, typename Number, int Rows, int Columns, int Q, int P>
TRAINKIT_INLINE void transform(const float (&matrix)[Rows][Columns], const Number (&in)[Q][Q], Number (&out)[P][P]) {
  Number half[P][Q];
#pragma GCC unroll 6
  for (int i = 0; i < P; ++i) {
#pragma GCC unroll 6
    for (int q = 0; q < Q; ++q) {
      Number sum{};
      bool is_first = true;
#pragma GCC unroll 6
      for (int j = 0; j < Q; ++j) {
        const float by = coefficient<Transposed>(matrix, i, j);
        if (by == 0) continue;
        sum = is_first ? by * in[j][q] : sum + by * in[j][q];
        is_first = false;
      }
      half[i][q] = sum;
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < P; ++i) {
#pragma GCC unroll 6
    for (int p = 0; p < P; ++p) {
      Number sum{};
      bool is_first = true;
#pragma GCC unroll 6
      for (int j = 0; j < Q; ++j) {
        const float by = coefficient<Transposed>(matrix, p, j);
        if (by == 0) continue;
        sum = is_first ? by * half[i][j] : sum + by * half[i][j];
        is_first = false;
      }
      out[i][p] = sum;
    }
  }
}

}  // namespace trainkit::detail
