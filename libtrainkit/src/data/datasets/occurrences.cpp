#include "data/datasets/occurrences.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <tuple>

namespace trainkit::detail {
namespace {

/// Where a row of a concatenated dataset is stored.
struct StoredRow {
  const Dataset* dataset;
  int64_t index;
  int64_t object;  // number of the concatenated object, in the order of their first parts
  int64_t row;     // of that object

  bool is_copy_of(const StoredRow& other) const { return dataset == other.dataset && index == other.index; }
};

/// Returns the datasets that several objects read.
std::set<const Dataset*> shared_sources(const std::vector<const Dataset*>& objects) {
  std::map<const Dataset*, int64_t> readers;
  for (const Dataset* object : objects) {
    const std::vector<const Dataset*> sources = object->sources();
    for (const Dataset* source : std::set(sources.begin(), sources.end())) ++readers[source];
  }
  std::set<const Dataset*> shared;
  for (const auto& [source, count] : readers) {
    if (count > 1) shared.insert(source);
  }
  return shared;
}

/// Returns for each object how many objects before it have each of its rows, for rows that have been in one.
std::vector<std::unordered_map<int64_t, int64_t>> earlier_objects(const std::vector<const Dataset*>& objects) {
  std::vector<std::unordered_map<int64_t, int64_t>> before(objects.size());
  const std::set<const Dataset*> shared = shared_sources(objects);
  if (shared.empty()) return before;
  std::vector<StoredRow> rows;
  for (size_t i = 0; i < objects.size(); ++i) {
    const std::vector<const Dataset*> sources = objects[i]->sources();
    if (std::none_of(sources.begin(), sources.end(), [&](const Dataset* one) { return shared.contains(one); }))
      continue;
    for (int64_t row = 0; row < objects[i]->size(); ++row) {
      const auto [dataset, index] = objects[i]->source(row);
      if (shared.contains(dataset)) rows.push_back({dataset, index, static_cast<int64_t>(i), row});
    }
  }
  std::sort(rows.begin(), rows.end(), [](const StoredRow& a, const StoredRow& b) {
    if (a.dataset != b.dataset) return std::less<>()(a.dataset, b.dataset);
    return std::tie(a.index, a.object, a.row) < std::tie(b.index, b.object, b.row);
  });
  int64_t earlier = 0;
  for (size_t i = 1; i < rows.size(); ++i) {
    if (!rows[i].is_copy_of(rows[i - 1])) {
      earlier = 0;
    } else {
      earlier += rows[i].object != rows[i - 1].object;
    }
    if (earlier > 0) before[static_cast<size_t>(rows[i].object)].emplace(rows[i].row, earlier);
  }
  return before;
}

}  // namespace

std::vector<int64_t> occurrences_of(const std::vector<int64_t>& indices) {
  if (std::adjacent_find(indices.begin(), indices.end(), std::greater_equal<>()) == indices.end()) return {};
  std::vector<int64_t> sorted = indices;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end()) return {};
  std::unordered_map<int64_t, int64_t> counts;
  std::vector<int64_t> occurrences;
  occurrences.reserve(indices.size());
  for (const int64_t index : indices) occurrences.push_back(counts[index]++);
  return occurrences;
}

std::vector<int64_t> occurrences_of_parts(std::span<const std::shared_ptr<const Dataset>> parts,
                                          std::vector<std::unordered_map<int64_t, int64_t>>& rows) {
  std::vector<const Dataset*> objects;  // each once
  std::vector<size_t> object_of;
  std::vector<int64_t> times, occurrences;  // how often an object has been a part
  for (const auto& part : parts) {
    const auto found = std::find(objects.begin(), objects.end(), part.get());
    object_of.push_back(static_cast<size_t>(found - objects.begin()));
    if (found == objects.end()) {
      objects.push_back(part.get());
      times.push_back(0);
    }
    occurrences.push_back(times[object_of.back()]++);
  }
  const std::vector<std::unordered_map<int64_t, int64_t>> before = earlier_objects(objects);
  const auto count = static_cast<int64_t>(objects.size());
  rows.assign(parts.size(), {});
  for (size_t part = 0; part < parts.size(); ++part) {
    occurrences[part] *= count;
    for (const auto& [row, earlier] : before[object_of[part]]) rows[part].emplace(row, occurrences[part] + earlier);
  }
  return occurrences;
}

}  // namespace trainkit::detail
