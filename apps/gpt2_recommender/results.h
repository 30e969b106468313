#pragma once
/// What a run keeps of its best epoch, and what it is judged by.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <limits>
#include <string>
#include <utility>

#include "gpt2_recommender/session.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/logging/logger.h"
#include "trainkit/train/evaluate.h"
#include "trainkit/train/trainer.h"

namespace trainkit {

/// The weights of the best evaluation so far by ndcg@10 of the validation part: `<output_dir>/best.safetensors`. Beside
/// it, `best.before.safetensors` is the best one that the last checkpoint knows, if that is another.
class BestModel {
 public:
  /// One that goes on from step `resumed_step` takes over what the file says; if that is of a later step, to which the
  /// run may never come again, what the file before it says. `writes`: this rank keeps the files.
  static absl::StatusOr<BestModel> open(const std::string& output_dir, int64_t resumed_step, bool writes);

  /// Keeps the weights if `value` is above all before. Errors: exit code 6.
  absl::Status offer(int64_t step, double value, const torch::nn::Module& model);

  /// Puts them into the model; true if there were any. Errors: exit code 5.
  absl::StatusOr<bool> restore(torch::nn::Module& model) const;

  int64_t step() const { return step_; }
  bool writes() const { return writes_; }

 private:
  BestModel(std::string output_dir, bool writes)
      : output_dir_(std::move(output_dir)), path_(output_dir_ + "/best.safetensors"), writes_(writes) {}
  /// Takes over step and value of a file, if it is there and not of a later step.
  absl::StatusOr<bool> take_over(const std::string& path, int64_t resumed_step);
  std::string before() const { return output_dir_ + "/best.before.safetensors"; }
  std::string output_dir_, path_;
  bool writes_;
  int64_t step_ = -1;
  double value_ = -std::numeric_limits<double>::infinity();
};

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

/// The last lines of a run.
std::string describe_result(const TrainerResult& result, const RunOptions& run, const TestScores& scores,
                            int64_t best_step);

}  // namespace trainkit
