#include "distributed/shards/shard_layout.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <map>
#include <utility>

#include "core/base/round_up.h"

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

ShardLayout::ShardLayout(std::vector<at::Tensor> shapes, std::vector<char> is_whole, const Options& options)
    : options_(options),
      shapes_(std::move(shapes)),
      is_whole_(std::move(is_whole)),
      buckets_(divide_parameters(shapes_, is_whole_, options.ranks, options.first_bytes, options.bucket_bytes)),
      places_(shapes_.size()) {
  for (size_t b = 0; b < buckets_.size(); ++b) {
    for (size_t i = 0; i < buckets_[b].parameters.size(); ++i) places_[buckets_[b].parameters[i]] = {b, i};
  }
}

at::Tensor ShardLayout::own_part(size_t bucket, const at::Tensor& buffer) const {
  const int64_t part = buckets_[bucket].part;
  return buffer.narrow(0, options_.rank * part, part);
}

at::Tensor ShardLayout::view(size_t parameter, const at::Tensor& buffer) const {
  const auto [bucket, position] = places_[parameter];
  const int64_t begin = buffer.storage_offset() + buckets_[bucket].begins[position];
  return buffer.as_strided(shapes_[parameter].sizes(), shapes_[parameter].strides(), begin);
}

at::Tensor ShardLayout::cut(size_t parameter, const at::Tensor& own) const {
  const auto [number, position] = places_[parameter];
  const ShardedBucket& bucket = buckets_[number];
  const at::Tensor& shape = shapes_[parameter];
  const int64_t first = options_.rank * bucket.part, begin = bucket.begins[position];
  const int64_t from = std::clamp(begin - first, int64_t{0}, bucket.part);
  const int64_t to = std::clamp(begin + shape.numel() - first, from, bucket.part);
  if (!is_whole_[parameter]) return own.narrow(0, from, to - from);
  return own.as_strided(sizes_of_whole(parameter, to - from), shape.strides(), own.storage_offset() + from);
}

/// Sizes of the `elements` that this rank has of a parameter with is_whole: all or none.
std::vector<int64_t> ShardLayout::sizes_of_whole(size_t parameter, int64_t elements) const {
  std::vector<int64_t> sizes = shapes_[parameter].sizes().vec();
  if (elements < shapes_[parameter].numel()) sizes.front() = 0;
  return sizes;
}

/// Number of the first element that belongs to `rank`, or to a later one, in the order of the parameter's memory.
int64_t ShardLayout::first_number(size_t parameter, int64_t rank) const {
  const auto [number, position] = places_[parameter];
  const ShardedBucket& bucket = buckets_[number];
  return std::clamp(rank * bucket.part - bucket.begins[position], int64_t{0}, shapes_[parameter].numel());
}

std::vector<int64_t> ShardLayout::cuts(size_t parameter) const {
  std::vector<int64_t> cuts;
  for (int64_t rank = 0; rank <= options_.ranks; ++rank) cuts.push_back(first_number(parameter, rank));
  return cuts;
}

at::Tensor ShardLayout::part_of(size_t parameter, const at::Tensor& whole) const {
  const at::Tensor& shape = shapes_.at(parameter);
  TORCH_CHECK_VALUE(fits(parameter, whole), "expected a tensor of the parameter's shape");
  const at::Tensor flat = at::empty({shape.numel()}, whole.options());
  flat.as_strided(shape.sizes(), shape.strides()).copy_(whole);
  const int64_t first = first_number(parameter, options_.rank);
  const at::Tensor own = flat.narrow(0, first, first_number(parameter, options_.rank + 1) - first);
  return is_whole_[parameter] ? own.view(sizes_of_whole(parameter, own.numel())) : own;
}

at::Tensor ShardLayout::make_whole(size_t parameter, at::ScalarType type) const {
  const at::Tensor& shape = shapes_.at(parameter);
  return at::empty_strided(shape.sizes(), shape.strides(), type);
}

void ShardLayout::put(size_t parameter, const at::Tensor& numbers, const at::Tensor& whole) const {
  const at::NoGradGuard no_grad;
  if (numbers.numel() == 0) return;
  if (is_whole_.at(parameter)) return void(whole.copy_(numbers));
  const at::Tensor flat = whole.as_strided({whole.numel()}, {1});
  flat.narrow(0, first_number(parameter, options_.rank), numbers.numel()).copy_(numbers);
}

}  // namespace trainkit::detail
