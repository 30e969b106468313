#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "emotion_recognition/folds.h"
#include "test_util.h"
#include "trainkit/core/error.h"

using namespace trainkit;
using namespace trainkit::emotion;
using namespace trainkit::test;

namespace {

/// Clips of speakers with these numbers of clips, taking turns.
ClipList clips_of(std::vector<int64_t> counts) {
  ClipList list{.csv = "clips.csv", .folder = ".", .labels = {"a"}, .clips = {}};
  for (bool any = true; any;) {
    any = false;
    for (size_t speaker = 0; speaker < counts.size(); ++speaker) {
      if (counts[speaker]-- <= 0) continue;
      list.clips.push_back({.path = "clip", .is_absent = speaker == 0, .group = "speaker " + std::to_string(speaker)});
      list.missing += speaker == 0;
      any = true;
    }
  }
  return list;
}

std::vector<int64_t> sizes(const std::vector<int64_t>& folds, int64_t count) {
  std::vector<int64_t> sizes(static_cast<size_t>(count), 0);
  for (const int64_t fold : folds) ++sizes.at(static_cast<size_t>(fold));
  return sizes;
}

}  // namespace

TEST_CASE("No group is in two folds, and the folds are about equally large", "[apps][emotion][folds]") {
  const ClipList list = clips_of({9, 1, 2, 7, 5, 5, 3, 8});
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const auto folds = assign_folds(list, 4, seed).value();
    REQUIRE(folds.size() == 40);
    std::map<std::string, int64_t> fold_of;
    for (size_t row = 0; row < folds.size(); ++row) {
      CHECK(fold_of.emplace(list.clips[row].group, folds[row]).first->second == folds[row]);
    }
    CHECK(sizes(folds, 4) == std::vector<int64_t>{10, 10, 10, 10});
  }
}

TEST_CASE("Clips without a group are divided at random, by the seed alone", "[apps][emotion][folds]") {
  ClipList list = clips_of({101});
  for (Clip& clip : list.clips) clip.group.clear();
  const auto folds = assign_folds(list, 5, 3).value();
  CHECK(sizes(folds, 5) == std::vector<int64_t>{21, 20, 20, 20, 20});
  CHECK(folds == assign_folds(list, 5, 3).value());
  CHECK(folds != assign_folds(list, 5, 4).value());
  CHECK_FALSE(std::is_sorted(folds.begin(), folds.end()));
}

TEST_CASE("Each clip is in one part of a fold's run, and in the test of exactly one", "[apps][emotion][folds]") {
  const ClipList list = clips_of({3, 3, 2, 2});
  const auto folds = assign_folds(list, 4, 1).value();
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
    CHECK(select(list, rows.test).clips.front().group == list.clips[static_cast<size_t>(rows.test.front())].group);
  }
  CHECK(tested.size() == 10);
  CHECK(std::set<int64_t>(tested.begin(), tested.end()).size() == 10);
  CHECK(validated == tested);
  CHECK(select(list, {0, 1, 4}).missing == 2);
}

TEST_CASE("More folds than groups are an error", "[apps][emotion][folds]") {
  const absl::Status status = assign_folds(clips_of({5, 5, 5}), 4, 0).status();
  CHECK(exit_code(status) == ExitCode::kData);
  CHECK_THAT(error_line(status), Catch::Contains("clips.csv") && Catch::Contains("got '4', expected at most 3"));
}
