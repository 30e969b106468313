#include "trainkit/data/split.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "trainkit/core/random.h"

namespace trainkit {

std::vector<std::vector<int64_t>> random_split(int64_t rows, const std::vector<double>& shares, uint64_t seed) {
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  const bool negative = std::any_of(shares.begin(), shares.end(), [](double share) { return !(share >= 0); });
  TORCH_CHECK_VALUE(rows >= 0 && !negative && std::abs(sum - 1) < 1e-9,
                    "random_split: the shares must be >= 0 and add up to 1, got ", shares, " of ", rows, " rows");
  std::vector<int64_t> sizes;
  for (const double share : shares) sizes.push_back(static_cast<int64_t>(static_cast<double>(rows) * share));
  const int64_t left = rows - std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  for (int64_t i = 0; i < left; ++i) ++sizes[static_cast<size_t>(i) % sizes.size()];

  std::vector<int64_t> order(static_cast<size_t>(rows));
  std::iota(order.begin(), order.end(), 0);
  RandomStream random(hash_key(seed, rows));
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  std::vector<std::vector<int64_t>> parts;
  auto begin = order.begin();
  for (const int64_t size : sizes) {
    parts.emplace_back(begin, begin + size);
    std::sort(parts.back().begin(), parts.back().end());
    begin += size;
  }
  return parts;
}

}  // namespace trainkit
