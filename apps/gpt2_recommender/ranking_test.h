#pragma once
/// Tests the trained recommender and writes the results of a run.

#include <string>
#include <utility>

#include "gpt2_recommender/ranking.h"
#include "trainkit/tasks/task.h"

namespace trainkit::rec {

/// Ranks the items of the test part, with the model and by popularity.
///
/// TestedRows::predictions are the lists of both, (2, users, k); TestedRows::scores those of summary.json: the model's,
/// "mrr" (equal to "mrr@10"), and popularity's after "popularity.".
class RankingTest final : public ModelTest {
 public:
  /// @param model the name of the model, for scores.json.
  /// @param metric the score that chooses the weights; lines and tables begin with it.
  RankingTest(Ranking ranking, std::string model, std::string metric)
      : ranking_(std::move(ranking)), model_(std::move(model)), metric_(std::move(metric)) {}

  const std::string& protocol() const { return ranking_.protocol(); }

  /// Ranks on rank 0 alone, once for the model and once for popularity; other ranks have no scores.
  absl::StatusOr<TestedRows> test(DeviceReplicator& devices, Prefetcher* loader, int64_t rows, Precision precision,
                                  ProcessGroup* group) const override;
  std::vector<ScoreName> score_names() const override;
  std::string monitor() const override { return metric_; }
  /// Writes scores.json with the protocol, the step of the best evaluation and all scores; and the page, with the
  /// scores over all users and by their activity.
  absl::Status write(const std::string& folder, const TestedRows& tested, ResultPage& page) const override;
  std::string table(const TestedRows& tested) const override;

 private:
  Ranking ranking_;
  std::string model_, metric_;
};

/// Prefixes of the popularity baseline's scores among the metrics of a validation and of a test.
inline constexpr const char* kPopularity = "popularity_";
inline constexpr const char* kTestPopularity = "popularity.";

/// Returns a warning if the best validation or the test has a lower score than the recommendation of the most popular
/// items to everyone; else "".
std::string compare_with_popularity(const Metrics& best_evaluation, const Metrics& test, const std::string& metric);

}  // namespace trainkit::rec
