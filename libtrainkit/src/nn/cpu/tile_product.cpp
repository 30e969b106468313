#include "nn/cpu/tile_product.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <array>
#include <utility>

#include "trainkit/core/vectorized.h"

namespace trainkit::detail {

// Note [Blocks of sums in registers]
//
// A block has R rows and V vectors of columns. Each term loads V vectors of B, and for each row one number of A that is
// multiplied with all of them, so R V fused multiply-adds need V + R loads. A processor with two units and a latency of
// four cycles needs at least 8 independent sums to be busy; AVX2 has 16 registers, of which 12 hold sums, and AVX-512
// has 32. The rows of a product are divided evenly among its blocks, because a last block with one row would wait for
// its own sums.

namespace {

#if defined(__x86_64__) && defined(__GNUC__)

/// Vector of W floats at any address.
template <int W>
struct Lanes {
  typedef float Type __attribute__((vector_size(W * 4), aligned(4), may_alias));
};

template <int W, int V, int R>
TRAINKIT_INLINE void multiply_block(const TileProduct& product, const float* a, const float* b, const float* bias,
                                    float* c) {
  using Vector = typename Lanes<W>::Type;
  Vector sums[R][V];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      const float* from = product.accumulates ? c + r * product.c_stride : bias;
      sums[r][v] = from ? *reinterpret_cast<const Vector*>(from + int64_t{v} * W) : Vector{};
    }
  }
  for (int64_t p = 0; p < product.num_pieces; ++p) {
    const float* row = a + product.pieces[p].a;
    const float* columns = b + product.pieces[p].b * product.b_stride;
    for (int64_t k = 0; k < product.length; ++k) {
      Vector terms[V];
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) terms[v] = *reinterpret_cast<const Vector*>(columns + int64_t{v} * W);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const float factor = row[r * product.row_stride];
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) sums[r][v] += factor * terms[v];
      }
      row += product.term_stride;
      columns += product.b_stride;
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      if (product.has_relu) sums[r][v] = sums[r][v] < 0 ? Vector{} : sums[r][v];  // keeps NaN
      *reinterpret_cast<Vector*>(c + r * product.c_stride + int64_t{v} * W) = sums[r][v];
    }
  }
}

using Block = void (*)(const TileProduct&, const float* a, const float* b, const float* bias, float* c);

template <int W, int V, int R>
__attribute__((target("avx2,fma"))) void block_avx2(const TileProduct& product, const float* a, const float* b,
                                                    const float* bias, float* c) {
  multiply_block<W, V, R>(product, a, b, bias, c);
}

template <int W, int V, int R>
__attribute__((target("avx512f,avx512vl,avx2,fma"))) void block_avx512(const TileProduct& product, const float* a,
                                                                       const float* b, const float* bias, float* c) {
  multiply_block<W, V, R>(product, a, b, bias, c);
}

/// Blocks of one width, with 1 to `most_rows` rows.
struct Panel {
  int64_t width = 0, most_rows = 0;
  std::array<Block, 14> blocks = {};
};

template <int W, int V, int... R>
constexpr Panel panel_avx2(std::integer_sequence<int, R...>) {
  return {W * V, sizeof...(R), {block_avx2<W, V, R + 1>...}};
}

template <int W, int V, int... R>
constexpr Panel panel_avx512(std::integer_sequence<int, R...>) {
  return {W * V, sizeof...(R), {block_avx512<W, V, R + 1>...}};
}

template <int N>
using Rows = std::make_integer_sequence<int, N>;

/// The panels of this processor, by width / 8 - 1.
const std::array<Panel, 4>& panels() {
  static constexpr std::array<Panel, 4> kAvx2 = {panel_avx2<8, 1>(Rows<12>()), panel_avx2<8, 2>(Rows<6>()),
                                                 panel_avx2<8, 3>(Rows<4>()), Panel{}};
  static constexpr std::array<Panel, 4> kAvx512 = {panel_avx512<8, 1>(Rows<14>()), panel_avx512<16, 1>(Rows<14>()),
                                                   panel_avx512<8, 3>(Rows<8>()), panel_avx512<16, 2>(Rows<12>())};
  static const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl");
  return has_avx512 ? kAvx512 : kAvx2;
}

#endif

}  // namespace

#if defined(__x86_64__) && defined(__GNUC__)

bool has_tile_product() {
  static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return has;
}

bool has_amx_bfloat16() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d >> 22 & 1) != 0;  // Intel SDM, volume 2, CPUID: leaf 7
}

int64_t panel_width(int64_t columns_left) {
  if (columns_left >= 32 && panels()[3].width > 0) return 32;
  if (columns_left == 24 || columns_left == 8) return columns_left;
  return 16;
}

void multiply_panel(const TileProduct& product, int64_t rows, int64_t width, const float* a, const float* b,
                    const float* bias, float* c) {
  const Panel& panel = panels()[static_cast<size_t>(width / 8 - 1)];
  int64_t blocks = (rows + panel.most_rows - 1) / panel.most_rows;
  for (int64_t row = 0; blocks > 0; --blocks) {
    const int64_t count = (rows - row + blocks - 1) / blocks;
    panel.blocks[static_cast<size_t>(count - 1)](product, a + row * product.row_stride, b, bias,
                                                 c + row * product.c_stride);
    row += count;
  }
}

#else

bool has_tile_product() { return false; }
bool has_amx_bfloat16() { return false; }
int64_t panel_width(int64_t columns_left) { return columns_left; }
void multiply_panel(const TileProduct&, int64_t, int64_t, const float*, const float*, const float*, float*) {}

#endif

}  // namespace trainkit::detail
