#pragma once
/// A small data set, and the flags of a small run of trainkit-gpt2rec with it.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "apps/program.h"
#include "apps/runs.h"
#include "gpt2_recommender/ratings.h"
#include "test_util.h"

namespace trainkit::test {

using namespace trainkit::rec;

/// A run folder with 60 users and 50 items in the three formats.
struct RecPlace {
  RecPlace() {
    const absl::Status written =
        write_demo_ratings(dir.path().string(), {.users = 60, .items = 50, .ratings_per_user = 16, .seed = 2});
    if (!written.ok()) throw std::runtime_error(error_line(written));
  }
  /// Flags of a run that takes about 1 ms per step. Flags in `more` replace those here.
  std::vector<std::string> flags(const std::string& run, std::vector<std::string> more = {}) const {
    const std::vector<std::pair<std::string, std::string>> mine = {
        {"--data_dir", dir / "ml-1m"}, {"--output_dir", dir / run}, {"--device", "cpu"}, {"--model", "bpr_mf"},
        {"--batch_size", "32"},        {"--embed_dim", "8"},        {"--lr", "0.02"},    {"--epochs", "4"},
        {"--log_every", "5"}};
    std::vector<std::string> all = std::move(more);
    for (const auto& [flag, value] : mine) {
      if (std::find(all.begin(), all.end(), flag) == all.end()) all.insert(all.end(), {flag, value});
    }
    return all;
  }
  TempDir dir;
};

}  // namespace trainkit::test
