#include "trainkit/data/sampler.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>

#include "data/order/permutation.h"
#include "trainkit/core/random.h"

namespace trainkit {

void Sampler::fill_strided(int64_t epoch, int64_t begin, int64_t stride, std::span<int64_t> out) const {
  for (size_t i = 0; i < out.size(); ++i) fill(epoch, begin + static_cast<int64_t>(i) * stride, out.subspan(i, 1));
}

SequentialSampler::SequentialSampler(int64_t size) : size_(size) {
  TORCH_CHECK_VALUE(size >= 0, "SequentialSampler: size must be >= 0, got ", size);
}

void SequentialSampler::fill(int64_t epoch, int64_t begin, std::span<int64_t> out) const {
  fill_strided(epoch, begin, 1, out);
}

void SequentialSampler::fill_strided(int64_t, int64_t begin, int64_t stride, std::span<int64_t> out) const {
  for (size_t i = 0; i < out.size(); ++i) out[i] = begin + static_cast<int64_t>(i) * stride;
}

RandomSampler::RandomSampler(int64_t size, RandomSamplerOptions options) : size_(size), options_(options) {
  TORCH_CHECK_VALUE(size >= 0, "RandomSampler: size must be >= 0, got ", size);
}

void RandomSampler::fill(int64_t epoch, int64_t begin, std::span<int64_t> out) const {
  fill_strided(epoch, begin, 1, out);
}

void RandomSampler::fill_strided(int64_t epoch, int64_t begin, int64_t stride, std::span<int64_t> out) const {
  KeyedPermutation(size_, hash_key(options_.seed, epoch)).fill(begin, stride, out);
}

WeightedRandomSampler::WeightedRandomSampler(std::span<const double> weights, WeightedRandomSamplerOptions options)
    : columns_(weights.size()), options_(options) {
  const auto count = static_cast<int64_t>(weights.size());
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    TORCH_CHECK_VALUE(std::isfinite(weights[i]) && weights[i] >= 0, "WeightedRandomSampler: weight ", i,
                      " must be finite and >= 0, got ", weights[i]);
    sum += weights[i];
  }
  TORCH_CHECK_VALUE(sum > 0 && std::isfinite(sum),
                    "WeightedRandomSampler: the weights must have a finite sum > 0, got ", sum);
  TORCH_CHECK_VALUE(options.num_samples >= 0, "WeightedRandomSampler: num_samples must be >= 0, got ",
                    options.num_samples);
  if (options_.num_samples == 0) options_.num_samples = count;

  // Alias method: each column has probability 1 / count. It keeps its own row's share and takes the rest from a row
  // that has too much.
  std::vector<int64_t> small, large;
  const auto columns = static_cast<double>(count);
  const bool is_tiny = !std::isfinite(columns / sum);  // then it would make the share of a weight of 0 NaN
  for (int64_t i = 0; i < count; ++i) {
    columns_[i] = {is_tiny ? weights[i] / sum * columns : weights[i] * (columns / sum), i};
    (columns_[i].keep < 1 ? small : large).push_back(i);
  }
  while (!small.empty() && !large.empty()) {
    const int64_t poor = small.back(), rich = large.back();
    small.pop_back();
    columns_[poor].alias = rich;
    columns_[rich].keep -= 1 - columns_[poor].keep;
    if (columns_[rich].keep < 1) {
      large.pop_back();
      small.push_back(rich);
    }
  }
  // The remaining columns differ from 1 only by rounding, except for rows of weight 0, which must never be drawn.
  for (const int64_t i : large) columns_[i].keep = 1;
  const int64_t heaviest = std::max_element(weights.begin(), weights.end()) - weights.begin();
  for (const int64_t i : small) columns_[i] = weights[i] > 0 ? Column{1, i} : Column{0, heaviest};
}

void WeightedRandomSampler::fill(int64_t epoch, int64_t begin, std::span<int64_t> out) const {
  fill_strided(epoch, begin, 1, out);
}

void WeightedRandomSampler::fill_strided(int64_t epoch, int64_t begin, int64_t stride, std::span<int64_t> out) const {
  for (size_t i = 0; i < out.size(); ++i) {
    RandomStream random(hash_key(options_.seed, epoch, begin + static_cast<int64_t>(i) * stride));
    const auto column = static_cast<int64_t>(random.below(columns_.size()));
    out[i] = random.uniform() < columns_[column].keep ? column : columns_[column].alias;
  }
}

DistributedSampler::DistributedSampler(std::shared_ptr<const Sampler> sampler, DistributedSamplerOptions options)
    : sampler_(std::move(sampler)), options_(options) {
  TORCH_CHECK_VALUE(sampler_ != nullptr, "DistributedSampler: the sampler must not be null");
  TORCH_CHECK_VALUE(sampler_->world_size() == 1, "DistributedSampler: the sampler is distributed already");
  TORCH_CHECK_VALUE(options.world_size >= 1, "DistributedSampler: world_size must be >= 1, got ", options.world_size);
  TORCH_CHECK_VALUE(options.rank >= 0 && options.rank < options.world_size, "DistributedSampler: rank must be in 0..",
                    options.world_size - 1, ", got ", options.rank);
  TORCH_CHECK_VALUE(options.multiple_of >= 1, "DistributedSampler: multiple_of must be >= 1, got ",
                    options.multiple_of);
  const int64_t whole = sampler_->size() - sampler_->size() % options.multiple_of;
  const int64_t world = options.world_size, left = whole % world;
  size_ = whole / world;
  rows_ = options.tail == UnevenTail::kDrop ? whole - left : whole;
  if (left == 0 || options.tail == UnevenTail::kDrop) return;
  if (options.tail == UnevenTail::kUneven) {
    size_ += options.rank < left;
  } else {
    size_ += 1;
    padding_ = options.rank >= left;
  }
}

/// Returns the position in the whole order. The padding position continues at the start of the epoch, repeatedly if
/// there are more ranks than rows.
int64_t DistributedSampler::whole_position(int64_t position) const {
  const uint64_t whole = static_cast<uint64_t>(position) * static_cast<uint64_t>(options_.world_size) +
                         static_cast<uint64_t>(options_.rank);
  return static_cast<int64_t>(whole % static_cast<uint64_t>(rows_));
}

int64_t DistributedSampler::draw(int64_t position) const { return sampler_->draw(whole_position(position)); }

void DistributedSampler::fill(int64_t epoch, int64_t begin, std::span<int64_t> out) const {
  fill_strided(epoch, begin, 1, out);
}

void DistributedSampler::fill_strided(int64_t epoch, int64_t begin, int64_t stride, std::span<int64_t> out) const {
  if (out.empty()) return;
  const int64_t world = options_.world_size;
  const int64_t last = begin + static_cast<int64_t>(out.size() - 1) * stride;
  const bool padded = padding_ > 0 && last == size_ - 1;
  const auto own = out.first(out.size() - padded);
  if (!own.empty()) sampler_->fill_strided(epoch, begin * world + options_.rank, stride * world, own);
  if (padded) sampler_->fill(epoch, whole_position(last), out.last(1));
}

}  // namespace trainkit
