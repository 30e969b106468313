#pragma once
/// Products and copies of the attention kernel: rows and columns of float32 in register tiles.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "core/base/round_up.h"
#include "core/tensors/vectors.h"

namespace trainkit::detail {

constexpr int64_t kTileRows = 8;  // rows per register tile, together with two column vectors

/// Computes c += a b (kAdd) or c = a b for R rows and V vectors of columns. Element (r, k) of a is a[r * a_row + k *
/// a_step].
template <int R, int V, bool kAdd>
TRAINKIT_INLINE void tile(const float* a, int64_t a_row, int64_t a_step, const float* b, int64_t b_row, int64_t depth,
                          float* c, int64_t c_row) {
  Floats sums[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      if constexpr (kAdd)
        load(c + r * c_row + v * kLanes, sums[r][v]);
      else
        sums[r][v] = Floats{};
    }
  }
  for (int64_t k = 0; k < depth; ++k) {
    Floats right[V];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) load(b + k * b_row + v * kLanes, right[v]);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const float left = a[r * a_row + k * a_step];
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) sums[r][v] += left * right[v];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) store(sums[r][v], c + r * c_row + v * kLanes);
  }
}

/// Multiplies kTileRows rows by a multiple of kLanes columns.
template <bool kAdd>
TRAINKIT_INLINE void multiply(const float* a, int64_t a_row, int64_t a_step, const float* b, int64_t b_row,
                              int64_t depth, float* c, int64_t c_row, int64_t columns) {
  int64_t at = 0;
  for (; at + 2 * kLanes <= columns; at += 2 * kLanes) {
    tile<kTileRows, 2, kAdd>(a, a_row, a_step, b + at, b_row, depth, c + at, c_row);
  }
  if (at < columns) tile<kTileRows, 1, kAdd>(a, a_row, a_step, b + at, b_row, depth, c + at, c_row);
}

/// Swaps the upper half of each 2 kHalf lanes of a with the lower half of those of b.
template <size_t kHalf, size_t... kLane>
TRAINKIT_INLINE void exchange(Floats& a, Floats& b, std::index_sequence<kLane...>) {
  const Floats x = a, y = b;
  a = __builtin_shufflevector(x, y, (kLane & kHalf ? kLane - kHalf + kLanes : kLane)...);
  b = __builtin_shufflevector(x, y, (kLane & kHalf ? kLane + kLanes : kLane + kHalf)...);
}

template <size_t kHalf>
TRAINKIT_INLINE void exchange_all(Floats (&rows)[kLanes]) {
#pragma GCC unroll 16
  for (size_t k = 0; k < kLanes; ++k) {
    if (!(k & kHalf)) exchange<kHalf>(rows[k], rows[k + kHalf], std::make_index_sequence<kLanes>());
  }
}

/// Transposes kLanes vectors in log2(kLanes) rounds that swap half of each pair.
TRAINKIT_INLINE void transpose(Floats (&rows)[kLanes]) {
  exchange_all<8>(rows);
  exchange_all<4>(rows);
  exchange_all<2>(rows);
  exchange_all<1>(rows);
}

/// Writes `count` rows of `width` values, with stride `row`, as columns of `to` (width, keys). Sets the columns up to
/// the next multiple of kLanes to 0.
template <typename T>
TRAINKIT_INLINE void to_columns(const T* from, int64_t row, int64_t count, int64_t width, float* to, int64_t keys) {
  for (int64_t j = 0; j < count; j += kLanes) {
    for (int64_t d = 0; d < width; d += kLanes) {
      Floats block[kLanes];
#pragma GCC unroll 16
      for (int64_t k = 0; k < kLanes; ++k) {
        if (j + k < count)
          load(from + (j + k) * row + d, block[k]);
        else
          block[k] = Floats{};
      }
      transpose(block);
#pragma GCC unroll 16
      for (int64_t k = 0; k < kLanes; ++k) store(block[k], to + (d + k) * keys + j);
    }
  }
}

/// Writes `count` rows of `width` values, times `factor`, contiguously. Appends zero rows up to a multiple of
/// kTileRows.
template <typename T>
TRAINKIT_INLINE void to_rows(const T* from, int64_t row, int64_t count, int64_t width, float factor, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t d = 0; d < width; d += kLanes) {
      Floats values;
      load(from + i * row + d, values);
      store(values * factor, to + i * width + d);
    }
  }
  std::fill(to + count * width, to + round_up(count, kTileRows) * width, 0.0f);
}

template <typename T>
TRAINKIT_INLINE void from_rows(const float* from, int64_t count, int64_t width, T* to, int64_t row) {
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t d = 0; d < width; d += kLanes) {
      Floats values;
      load(from + i * width + d, values);
      store(values, to + i * row + d);
    }
  }
}

}  // namespace trainkit::detail
