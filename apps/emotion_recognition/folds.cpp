#include "emotion_recognition/folds.h"

#include <algorithm>
#include <map>
#include <string>

#include "trainkit/core/data_error.h"
#include "trainkit/core/status.h"
#include "trainkit/data/sampler.h"

namespace trainkit::emotion {

absl::StatusOr<std::vector<int64_t>> assign_folds(const ClipList& list, int64_t count, uint64_t seed) {
  std::vector<std::vector<int64_t>> groups;  // rows of each group, in the order of the table
  std::map<std::string, size_t> known;
  for (int64_t row = 0; row < list.size(); ++row) {
    const std::string& name = list.clips[static_cast<size_t>(row)].group;
    const size_t group = name.empty() ? groups.size() : known.emplace(name, groups.size()).first->second;
    if (group == groups.size()) groups.emplace_back();
    groups[group].push_back(row);
  }
  const auto total = static_cast<int64_t>(groups.size());
  if (total < count) {
    return data_error("data.folds", {.file = list.csv, .field = "folds"}, "more folds than groups of clips",
                      std::to_string(count), "at most " + std::to_string(total),
                      "use fewer --folds, or another --group");
  }
  std::vector<int64_t> order(groups.size());
  RandomSampler(total, {.seed = seed}).fill(0, 0, order);
  const auto size_of = [&](int64_t group) { return groups[static_cast<size_t>(group)].size(); };
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return size_of(a) > size_of(b); });
  std::vector<size_t> sizes(static_cast<size_t>(count), 0);
  std::vector<int64_t> folds(list.clips.size());
  for (const int64_t group : order) {
    const auto fold = std::min_element(sizes.begin(), sizes.end()) - sizes.begin();
    sizes[static_cast<size_t>(fold)] += size_of(group);
    for (const int64_t row : groups[static_cast<size_t>(group)]) folds[static_cast<size_t>(row)] = fold;
  }
  return folds;
}

FoldRows rows_of_fold(const std::vector<int64_t>& folds, int64_t count, int64_t index) {
  FoldRows rows;
  for (size_t row = 0; row < folds.size(); ++row) {
    const bool is_test = folds[row] == index, is_validation = folds[row] == (index + 1) % count;
    (is_test ? rows.test : is_validation ? rows.validation : rows.train).push_back(static_cast<int64_t>(row));
  }
  return rows;
}

ClipList select(const ClipList& list, const std::vector<int64_t>& rows) {
  ClipList some{.csv = list.csv, .folder = list.folder, .labels = list.labels, .clips = {}};
  for (const int64_t row : rows) {
    some.clips.push_back(list.clips[static_cast<size_t>(row)]);
    some.missing += some.clips.back().is_absent ? 1 : 0;
  }
  return some;
}

}  // namespace trainkit::emotion
