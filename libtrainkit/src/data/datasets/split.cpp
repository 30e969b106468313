#include "trainkit/data/split.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "trainkit/core/data_error.h"
#include "trainkit/core/status.h"
#include "trainkit/data/adapters.h"
#include "trainkit/data/sampler.h"

namespace trainkit {

std::vector<std::vector<int64_t>> random_split(int64_t size, const std::vector<double>& shares, uint64_t seed) {
  const bool in_range = std::all_of(shares.begin(), shares.end(), [](double share) { return share >= 0; });
  TORCH_CHECK_VALUE(in_range && std::abs(std::accumulate(shares.begin(), shares.end(), 0.0) - 1) < 1e-6,
                    "shares must be 0 or more, with the sum 1");
  std::vector<int64_t> order(static_cast<size_t>(size)), sizes;
  RandomSampler(size, {.seed = seed}).fill(0, 0, order);
  for (const double share : shares) sizes.push_back(static_cast<int64_t>(share * static_cast<double>(size)));
  int64_t left = size - std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  for (size_t i = 0; left > 0; i = (i + 1) % sizes.size(), --left) ++sizes[i];
  std::vector<std::vector<int64_t>> parts;
  auto begin = order.begin();
  for (const int64_t part : sizes) {
    std::sort(parts.emplace_back(begin, begin + part).begin(), parts.back().end());
    begin += part;
  }
  return parts;
}

std::vector<std::shared_ptr<const Dataset>> random_split(std::shared_ptr<const Dataset> dataset,
                                                         const std::vector<double>& shares, uint64_t seed) {
  TORCH_CHECK_VALUE(dataset, "dataset is null");
  std::vector<std::shared_ptr<const Dataset>> parts;
  for (std::vector<int64_t>& rows : random_split(dataset->size(), shares, seed)) {
    parts.push_back(std::make_shared<Subset>(dataset, std::move(rows)));
  }
  return parts;
}

absl::StatusOr<std::vector<int64_t>> group_folds(std::span<const std::string> groups, int64_t count, uint64_t seed,
                                                 const std::string& file) {
  std::vector<std::vector<int64_t>> rows_of;  // of each group, in the order of the rows
  std::map<std::string, size_t> known;
  for (size_t row = 0; row < groups.size(); ++row) {
    const std::string& name = groups[row];
    const size_t group = name.empty() ? rows_of.size() : known.emplace(name, rows_of.size()).first->second;
    if (group == rows_of.size()) rows_of.emplace_back();
    rows_of[group].push_back(static_cast<int64_t>(row));
  }
  const auto total = static_cast<int64_t>(rows_of.size());
  if (total < count) {
    return data_error("data.folds", {.file = file, .field = "folds"}, "more folds than groups", std::to_string(count),
                      "at most " + std::to_string(total), "use fewer folds, or smaller groups");
  }
  std::vector<int64_t> order(rows_of.size());
  RandomSampler(total, {.seed = seed}).fill(0, 0, order);
  const auto size_of = [&](int64_t group) { return rows_of[static_cast<size_t>(group)].size(); };
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return size_of(a) > size_of(b); });
  std::vector<size_t> sizes(static_cast<size_t>(count), 0);
  std::vector<int64_t> folds(groups.size());
  for (const int64_t group : order) {
    const auto fold = std::min_element(sizes.begin(), sizes.end()) - sizes.begin();
    sizes[static_cast<size_t>(fold)] += size_of(group);
    for (const int64_t row : rows_of[static_cast<size_t>(group)]) folds[static_cast<size_t>(row)] = fold;
  }
  return folds;
}

FoldRows rows_of_fold(std::span<const int64_t> folds, int64_t count, int64_t index) {
  FoldRows rows;
  for (size_t row = 0; row < folds.size(); ++row) {
    const bool is_test = folds[row] == index, is_validation = folds[row] == (index + 1) % count;
    (is_test ? rows.test : is_validation ? rows.validation : rows.train).push_back(static_cast<int64_t>(row));
  }
  return rows;
}

}  // namespace trainkit
