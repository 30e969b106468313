#pragma once
/// Products of small blocks of float32 matrices, with the block of sums in registers: the inner loop of the
/// convolutions on the CPU.

#include <cstdint>

namespace trainkit::detail {

/// Describes C = A B for many blocks. The terms of a sum come in pieces, so that A and B may be views of an image:
/// C[r][c] = sum over pieces p and k < length of A[p.a + r row_stride + k term_stride] B[(p.b + k) b_stride + c].
/// Offsets and strides count floats, but `Piece::b` counts rows of B.
struct TileProduct {
  struct Piece {
    int64_t a = 0, b = 0;
  };

  int64_t row_stride, term_stride;
  const Piece* pieces;
  int64_t num_pieces, length;
  int64_t b_stride, c_stride;
  /// Adds to C instead of setting it.
  bool accumulates = false;
  /// Replaces negative sums by 0.
  bool has_relu = false;
};

/// Returns whether this processor can run multiply_panel(): x86-64 with AVX2 and FMA.
bool has_tile_product();

/// Returns whether this processor multiplies bfloat16 matrices with AMX.
bool has_amx_bfloat16();

/// Returns the number of columns, a multiple of 8, of the next panel of a matrix with `columns_left` more columns, also
/// a multiple of 8. A product is computed panel by panel.
int64_t panel_width(int64_t columns_left);

/// Computes `rows` rows and `width` columns of a product, `width` from panel_width(). a, b and c point to the block's
/// first elements; `bias` (width) is added, may be null, and is not used if C accumulates. Sums are in order of their
/// terms, so results do not depend on the blocks or on threads.
void multiply_panel(const TileProduct& product, int64_t rows, int64_t width, const float* a, const float* b,
                    const float* bias, float* c);

/// Calls f(first_column, width) for each panel of a matrix with `columns` columns.
template <typename F>
void for_each_panel(int64_t columns, const F& f) {
  for (int64_t column = 0; column < columns;) {
    const int64_t width = panel_width(columns - column);
    f(column, width);
    column += width;
  }
}

}  // namespace trainkit::detail
