// Places the parameters of a divided training state in buckets; see Note [Shards of parameters].
#include <algorithm>
#include <map>
#include <utility>

#include "core/base/round_up.h"
#include "distributed/shards/parameter_shards.h"

namespace trainkit::detail {
namespace {

/// Every parameter starts at a multiple of this, see Note [Shards of parameters].
constexpr int64_t kAlignment = 64;
/// Matrices per rank in a bucket in which no part cuts them, so that the parts become about equal.
constexpr int64_t kWholePerRank = 2;

int64_t aligned(int64_t elements, int64_t element_bytes) {
  const int64_t step = std::max<int64_t>(1, kAlignment / element_bytes);
  return round_up(elements, step);
}

/// Places parameters one after the other and divides the bucket evenly.
void place_in_order(ShardedBucket& bucket, const std::vector<at::Tensor>& parameters, int64_t ranks) {
  int64_t end = 0;
  for (const size_t p : bucket.parameters) {
    const at::Tensor& parameter = parameters[p];
    bucket.begins.push_back(end);
    end += aligned(parameter.numel(), parameter.element_size());
  }
  const int64_t bytes = parameters[bucket.parameters.front()].element_size();
  bucket.part = aligned((end + ranks - 1) / ranks, bytes);
}

/// Places each parameter in one part: the largest ones first, each in the part that has the fewest elements.
void place_whole(ShardedBucket& bucket, const std::vector<at::Tensor>& parameters, int64_t ranks) {
  std::vector<size_t> by_size(bucket.parameters.size());
  for (size_t i = 0; i < by_size.size(); ++i) by_size[i] = i;
  const auto size_of = [&](size_t i) { return parameters[bucket.parameters[i]].numel(); };
  std::stable_sort(by_size.begin(), by_size.end(), [&](size_t a, size_t b) { return size_of(a) > size_of(b); });
  std::vector<int64_t> filled(static_cast<size_t>(ranks));
  std::vector<size_t> owner(by_size.size());
  bucket.begins.resize(by_size.size());
  for (const size_t i : by_size) {
    const auto least = std::min_element(filled.begin(), filled.end());
    owner[i] = static_cast<size_t>(least - filled.begin());
    bucket.begins[i] = *least;
    *least += aligned(size_of(i), parameters[bucket.parameters[i]].element_size());
  }
  bucket.part = *std::max_element(filled.begin(), filled.end());
  for (size_t i = 0; i < owner.size(); ++i) bucket.begins[i] += static_cast<int64_t>(owner[i]) * bucket.part;
}

}  // namespace

std::vector<ShardedBucket> divide_parameters(const std::vector<at::Tensor>& parameters,
                                             const std::vector<char>& is_whole, int64_t ranks, int64_t first_bytes,
                                             int64_t bucket_bytes) {
  std::vector<ShardedBucket> buckets;
  std::map<std::pair<at::ScalarType, bool>, std::pair<ShardedBucket, int64_t>> open;  // with their bytes
  const auto close = [&](ShardedBucket& bucket, bool whole) {
    if (bucket.parameters.empty()) return;
    whole ? place_whole(bucket, parameters, ranks) : place_in_order(bucket, parameters, ranks);
    buckets.push_back(std::exchange(bucket, {}));
  };
  for (size_t p = parameters.size(); p-- > 0;) {
    const bool whole = is_whole[p] != 0;
    auto& [bucket, bytes] = open[{parameters[p].scalar_type(), whole}];
    bucket.parameters.push_back(p);
    bytes += static_cast<int64_t>(parameters[p].nbytes());
    if (bytes < (buckets.empty() ? first_bytes : bucket_bytes)) continue;
    if (whole && static_cast<int64_t>(bucket.parameters.size()) < kWholePerRank * ranks) continue;
    close(bucket, whole);
    bytes = 0;
  }
  for (auto& [kind, bucket] : open) close(bucket.first, kind.second);
  return buckets;
}

}  // namespace trainkit::detail
