// Where the ranks' parts of a parameter are, for checkpoints.
#include <algorithm>

#include "distributed/parameter_shards.h"

namespace trainkit::detail {

const at::Tensor* ParameterShards::find_part(const at::Tensor& parameter) const {
  const auto found = std::find_if(parameters_.begin(), parameters_.end(),
                                  [&](const at::Tensor& one) { return one.is_same(parameter); });
  return found == parameters_.end() ? nullptr : &parts_[static_cast<size_t>(found - parameters_.begin())];
}

std::vector<int64_t> ParameterShards::cuts(const at::Tensor& part) const {
  const size_t p = index_of_part(part);
  const auto& [number, position] = places_[p];
  const Bucket& bucket = buckets_[number];
  std::vector<int64_t> cuts;
  for (int64_t rank = 0; rank <= collectives_.ranks; ++rank) {
    const int64_t first = rank * bucket.part - bucket.begins[position];
    cuts.push_back(std::clamp(first, int64_t{0}, shapes_[p].numel()));
  }
  return cuts;
}

}  // namespace trainkit::detail
