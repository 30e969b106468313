#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <vector>

#include "data/order/permutation.h"
#include "trainkit/core/random.h"
#include "trainkit/data/sampler.h"

namespace trainkit {
namespace {

constexpr uint64_t kPassStream = 0x6d69787475726501;  // separates the passes from other uses of the seed

// Note [Mixture]
// ~~~~~~~~~~~~~~
// The positions of an epoch are shuffled by a keyed permutation. Of the shuffled positions, dataset i owns a fixed
// range of counts_[i], so its share of an epoch is exact. The draws of a dataset are numbered through all epochs: draw
// d is row d % size of pass d / size, and each pass has its own permutation. At the end of every epoch the rows of a
// dataset have therefore been shown equally often, or once more. Within an epoch the draws are shuffled, so that a row
// may come again before another one has come. Every step is O(1), so any position can be computed directly.

/// Rows of several datasets in fixed shares. See Note [Mixture].
class MixtureSampler final : public Sampler {
 public:
  MixtureSampler(std::vector<int64_t> sizes, std::vector<int64_t> counts, uint64_t seed)
      : sizes_(std::move(sizes)),
        counts_(std::move(counts)),
        begins_(sizes_.size()),
        ends_(counts_.size()),
        seed_(seed) {
    std::exclusive_scan(sizes_.begin(), sizes_.end(), begins_.begin(), int64_t{0});
    std::inclusive_scan(counts_.begin(), counts_.end(), ends_.begin());
  }

  int64_t size() const override { return ends_.back(); }
  uint64_t seed() const override { return seed_; }
  int64_t draw(int64_t position) const override { return position + 1; }
  void fill(int64_t epoch, int64_t begin, std::span<int64_t> out) const override { fill_strided(epoch, begin, 1, out); }

  void fill_strided(int64_t epoch, int64_t begin, int64_t stride, std::span<int64_t> out) const override {
    KeyedPermutation(size(), hash_key(seed_, epoch)).fill(begin, stride, out);
    std::vector<Pass> passes(sizes_.size());  // the last one of each dataset
    for (int64_t& slot : out) slot = row_of(epoch, slot, passes);
  }

 private:
  struct Pass {
    int64_t number = -1;
    std::optional<KeyedPermutation> order = {};
  };

  int64_t row_of(int64_t epoch, int64_t slot, std::vector<Pass>& passes) const {
    const auto i = static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), slot) - ends_.begin());
    const auto size = static_cast<detail::uint128>(sizes_[i]);
    const auto draw = static_cast<detail::uint128>(epoch) * static_cast<detail::uint128>(counts_[i]) +
                      static_cast<detail::uint128>(slot - (ends_[i] - counts_[i]));
    Pass& pass = passes[i];
    if (const auto number = static_cast<int64_t>(draw / size); number != pass.number) {
      pass.number = number;
      pass.order.emplace(sizes_[i], hash_key(kPassStream, seed_, i, number));
    }
    return begins_[i] + (*pass.order)(static_cast<int64_t>(draw % size));
  }

  std::vector<int64_t> sizes_, counts_;
  std::vector<int64_t> begins_;  // first row of each dataset
  std::vector<int64_t> ends_;    // of the shuffled positions of each dataset
  uint64_t seed_;
};

/// Divides `total` in proportion to the weights: rounded down, and the rest to the largest remainders.
std::vector<int64_t> divide(int64_t total, std::span<const double> weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<int64_t> counts;
  std::vector<double> rests;
  int64_t left = total;
  for (const double weight : weights) {
    const double exact = static_cast<double>(total) * (weight / sum);
    // Beyond 2^53 a double is rounded, perhaps to more than is left.
    counts.push_back(exact < static_cast<double>(left) ? static_cast<int64_t>(exact) : left);
    rests.push_back(exact - std::floor(exact));
    left -= counts.back();
  }
  for (; left > 0; --left) {
    const auto most = std::max_element(rests.begin(), rests.end()) - rests.begin();
    ++counts[static_cast<size_t>(most)];
    rests[static_cast<size_t>(most)] = -1;
  }
  return counts;
}

}  // namespace

std::shared_ptr<const Sampler> mixture_sampler(std::span<const int64_t> sizes, std::span<const double> weights,
                                               WeightedRandomSamplerOptions options) {
  TORCH_CHECK_VALUE(!sizes.empty() && sizes.size() == weights.size(), "mixture_sampler: ", sizes.size(),
                    " datasets and ", weights.size(), " weights");
  for (size_t i = 0; i < sizes.size(); ++i) {
    TORCH_CHECK_VALUE(sizes[i] >= 1, "mixture_sampler: dataset ", i, " must have rows, got ", sizes[i]);
    TORCH_CHECK_VALUE(std::isfinite(weights[i]) && weights[i] > 0, "mixture_sampler: weight ", i,
                      " must be finite and > 0, got ", weights[i]);
  }
  TORCH_CHECK_VALUE(options.num_samples >= 0, "mixture_sampler: num_samples must be >= 0, got ", options.num_samples);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  TORCH_CHECK_VALUE(std::isfinite(sum), "mixture_sampler: the weights must have a finite sum, got ", sum);
  const int64_t rows = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  return std::make_shared<MixtureSampler>(std::vector<int64_t>(sizes.begin(), sizes.end()),
                                          divide(options.num_samples > 0 ? options.num_samples : rows, weights),
                                          options.seed);
}

}  // namespace trainkit
