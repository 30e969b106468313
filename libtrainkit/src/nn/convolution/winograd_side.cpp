// The choice of the squares of Winograd's convolutions, see Note [Winograd's convolutions].
#include "nn/convolution/winograd.h"
#include "nn/cpu/tile_product.h"

namespace trainkit::detail {
namespace {

constexpr int64_t kMostWeights = int64_t{5} << 19;  // transformed: 10 MB; more take as long as the products of a batch

/// Multiply-adds of the products and, weighed by their slower memory accesses, of the transforms.
double cost(const ImageShape& s, int64_t side) {
  constexpr double kTransform = 12;  // multiply-adds of a product in the time of a transformed number, measured
  const auto [rows, columns, depth] = s.out();
  const int64_t squares = ((rows + side - 1) / side) * ((columns + side - 1) / side);
  const auto places = static_cast<double>(squares * (side + 2) * (side + 2));
  const auto products = static_cast<double>(depth * s.kernel[2] * s.channels * s.kernels);
  const auto transforms = static_cast<double>(s.size[2] * s.channels + depth * s.kernels);
  return places * (products + kTransform * transforms);
}

}  // namespace

int64_t winograd_side(const ImageShape& s) {
  if (s.kernel[0] != 3 || s.kernel[1] != 3 || s.padding[0] > 2 || s.padding[1] > 2 || s.padding[2] > 0) return 0;
  if (s.kernels % 8 != 0 || !has_tile_product()) return 0;
  int64_t best = 0;
  double least = static_cast<double>(s.out_positions() * s.kernel_positions() * s.channels * s.kernels);
  for (const int64_t side : {2, 3, 4}) {
    if ((side + 2) * (side + 2) * s.kernel[2] * s.channels * s.kernels > kMostWeights) continue;
    if (const double here = cost(s, side); here < least) {
      least = here;
      best = side;
    }
  }
  return best;
}

}  // namespace trainkit::detail
