#pragma once
/// Tests the trained recommender and writes the results of a run.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "gpt2_recommender/session.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/logging/logger.h"
#include "trainkit/train/checkpoint.h"
#include "trainkit/train/evaluate.h"
#include "trainkit/train/trainer.h"

namespace trainkit::rec {

/// Scores on the test part of the model and of the popularity baseline.
struct TestScores {
  Metrics model;
  Metrics popularity;
  std::string protocol;
  /// Score that chose the weights; tables begin with it.
  std::string metric;
  /// The same scores for users of low to high activity.
  std::vector<ActivityGroup> by_activity = {};

  /// Scores for summary.json: those of the model, "mrr" (equal to "mrr@10"), and the baseline's with "popularity.".
  Metrics summary() const;
};

/// Writes the adapters of the best model so far to `<output_dir>/results/best_adapter`. Does nothing without
/// --lora_rank.
absl::Status save_best_adapters(const Recommender& model, const Session& session, const RunOptions& run);

/// Writes the results of a run. Only rank 0 calls it.
///
/// With --lora_rank it writes `<output_dir>/results/adapter`. Unless a signal ended the run, it also loads the best
/// weights into `model`, tests it, writes scores.json, and the merged GPT-2 with --merge_lora, to the same folder.
/// Returns empty scores after a signal. Errors: exit codes 5 and 6.
absl::StatusOr<TestScores> write_results(const RunOptions& run, const Session& session, const TrainerResult& result,
                                         const BestModel& best, Recommender& model, Logger& logger);

/// Scores a model on the test part.
TestScores test_model(Recommender& model, const Session& session);

/// Writes `<folder>/scores.json` with the protocol, the step of the best evaluation, and all scores.
absl::Status write_scores(const std::string& folder, const Session& session, const TestScores& scores,
                          int64_t best_step);

/// Writes what the run's report shows: `<folder>/report.json` with the scores of the model against popularity, over all
/// users and by their activity. Errors: exit code 6.
absl::Status write_result_page(const std::string& folder, const TestScores& scores, int64_t best_step);

/// Formats the test scores and the protocol as a Markdown table.
std::string score_table(const TestScores& scores);

/// Prefix of the popularity baseline's score among the metrics of a validation.
inline constexpr const char* kPopularity = "popularity_";

/// Returns a warning if the best validation or the test has a lower score than the recommendation of the most popular
/// items to everyone; else "".
std::string compare_with_popularity(const Metrics& best_evaluation, const TestScores& scores,
                                    const std::string& metric);

/// Formats the scores of validation and test as lines. `metric` chose the weights.
std::string describe_result(const TrainerResult& result, const TestScores& scores, const std::string& metric,
                            int64_t best_step);

}  // namespace trainkit::rec
