#include "trainkit/data/split.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "test_util.h"
#include "trainkit/data/tensor_dataset.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

std::shared_ptr<const Dataset> numbered_rows(int64_t rows) {
  return std::make_shared<TensorDataset>(TensorDataset({{"x", at::arange(rows)}}));
}

/// The row of numbered_rows() that each row of a part is.
std::vector<int64_t> rows_of(const Dataset& part) {
  std::vector<int64_t> rows;
  for (int64_t row = 0; row < part.size(); ++row) rows.push_back(part.source(row).second);
  return rows;
}

/// Speakers with these numbers of rows, taking turns.
std::vector<std::string> speakers(std::vector<int64_t> counts) {
  std::vector<std::string> groups;
  for (bool any = true; any;) {
    any = false;
    for (size_t speaker = 0; speaker < counts.size(); ++speaker) {
      if (counts[speaker]-- <= 0) continue;
      groups.push_back("speaker " + std::to_string(speaker));
      any = true;
    }
  }
  return groups;
}

std::vector<int64_t> fold_sizes(const std::vector<int64_t>& folds, int64_t count) {
  std::vector<int64_t> sizes(static_cast<size_t>(count), 0);
  for (const int64_t fold : folds) ++sizes.at(static_cast<size_t>(fold));
  return sizes;
}

}  // namespace

TEST_CASE("A random split has each row once, in parts of the shares, by the seed alone", "[data][split]") {
  const auto parts = random_split(numbered_rows(11), {0.5, 0.3, 0.2}, 3);
  REQUIRE(parts.size() == 3);
  CHECK((parts[0]->size() == 6 && parts[1]->size() == 3 && parts[2]->size() == 2));
  std::vector<int64_t> all;
  for (const auto& part : parts) {
    const std::vector<int64_t> rows = rows_of(*part);
    CHECK(std::is_sorted(rows.begin(), rows.end()));
    all.insert(all.end(), rows.begin(), rows.end());
  }
  CHECK_FALSE(std::is_sorted(all.begin(), all.end()));
  std::sort(all.begin(), all.end());
  std::vector<int64_t> expected(11);
  std::iota(expected.begin(), expected.end(), 0);
  CHECK(all == expected);
  CHECK(rows_of(*random_split(numbered_rows(11), {0.5, 0.5}, 3)[0]) ==
        rows_of(*random_split(numbered_rows(11), {0.5, 0.5}, 3)[0]));
  CHECK(rows_of(*random_split(numbered_rows(99), {0.5, 0.5}, 3)[0]) !=
        rows_of(*random_split(numbered_rows(99), {0.5, 0.5}, 4)[0]));
  CHECK(random_split(numbered_rows(2), {0, 1})[0]->size() == 0);
  CHECK(random_split(numbered_rows(0), {1})[0]->size() == 0);
  CHECK_THROWS_AS(random_split(nullptr, {1}), c10::ValueError);
  for (const std::vector<double>& shares : std::vector<std::vector<double>>{{}, {0.5}, {1.5, -0.5}, {NAN, 1}}) {
    CHECK_THROWS_AS(random_split(numbered_rows(4), shares), c10::ValueError);
  }
}

TEST_CASE("No group is in two folds, and the folds are about equally large", "[data][split]") {
  const std::vector<std::string> groups = speakers({9, 1, 2, 7, 5, 5, 3, 8});
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const auto folds = group_folds(groups, 4, seed).value();
    REQUIRE(folds.size() == 40);
    std::map<std::string, int64_t> fold_of;
    for (size_t row = 0; row < folds.size(); ++row) {
      CHECK(fold_of.emplace(groups[row], folds[row]).first->second == folds[row]);
    }
    CHECK(fold_sizes(folds, 4) == std::vector<int64_t>{10, 10, 10, 10});
  }
}

TEST_CASE("Rows without a group are divided at random, by the seed alone", "[data][split]") {
  const std::vector<std::string> none(101);
  const auto folds = group_folds(none, 5, 3).value();
  CHECK(fold_sizes(folds, 5) == std::vector<int64_t>{21, 20, 20, 20, 20});
  CHECK(folds == group_folds(none, 5, 3).value());
  CHECK(folds != group_folds(none, 5, 4).value());
  CHECK_FALSE(std::is_sorted(folds.begin(), folds.end()));
}

TEST_CASE("Each row is in one part of a fold's run, and in the test of exactly one", "[data][split]") {
  const auto folds = group_folds(speakers({3, 3, 2, 2}), 4, 1).value();
  std::multiset<int64_t> tested, validated;
  for (int64_t fold = 0; fold < 4; ++fold) {
    const FoldRows rows = rows_of_fold(folds, 4, fold);
    std::set<int64_t> all(rows.train.begin(), rows.train.end());
    all.insert(rows.validation.begin(), rows.validation.end());
    all.insert(rows.test.begin(), rows.test.end());
    CHECK(all.size() == 10);
    CHECK(rows.train.size() + rows.validation.size() + rows.test.size() == 10);
    tested.insert(rows.test.begin(), rows.test.end());
    validated.insert(rows.validation.begin(), rows.validation.end());
  }
  CHECK(tested.size() == 10);
  CHECK(std::set<int64_t>(tested.begin(), tested.end()).size() == 10);
  CHECK(validated == tested);
}

TEST_CASE("More folds than groups are an error", "[data][split]") {
  const absl::Status status = group_folds(speakers({5, 5, 5}), 4, 0, "clips.csv").status();
  CHECK(exit_code(status) == ExitCode::kData);
  CHECK_THAT(error_line(status), Catch::Contains("clips.csv") && Catch::Contains("got '4', expected at most 3"));
}
