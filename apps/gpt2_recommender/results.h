#pragma once
/// What a run is judged by, and what it leaves.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <string>

#include "gpt2_recommender/session.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/logging/logger.h"
#include "trainkit/train/best_model.h"
#include "trainkit/train/evaluate.h"
#include "trainkit/train/trainer.h"

namespace trainkit::rec {

/// Scores of the test part, of the model and of recommending what is popular.
struct TestScores {
  Metrics model;
  Metrics popularity;
  std::string protocol;

  /// For summary.json: both, with "mrr", the first hit's place among ten, and "popularity." before the latter's names.
  Metrics summary() const;
};

/// The adapters of a model that is the best so far, as `<output_dir>/best_adapter`; nothing without --lora_rank.
absl::Status save_best_adapters(const Recommender& model, const Session& session, const RunOptions& run);

/// What the first rank leaves at the end of a run: with --lora_rank `<output_dir>/adapter`, and, unless a signal ended
/// it, the test of the best model (whose weights `model` has then), its scores.json, and what --merge_lora asks for.
/// Scores are empty after a signal. Errors: exit codes 5 and 6.
absl::StatusOr<TestScores> write_results(const RunOptions& run, const Session& session, const TrainerResult& result,
                                         const BestModel& best, Recommender& model, Logger& logger);

/// Scores a model's vectors.
TestScores test_model(Recommender& model, const Session& session);

/// Writes `<output_dir>/scores.json`, with the protocol, the step of the best epoch, and all scores.
absl::Status write_scores(const std::string& output_dir, const Session& session, const TestScores& scores,
                          int64_t best_step);

/// The table of a test, in Markdown, with the protocol.
std::string score_table(const TestScores& scores);

/// The scores of validation and test, each line with a line end.
std::string describe_result(const TrainerResult& result, const TestScores& scores, int64_t best_step);

}  // namespace trainkit::rec
