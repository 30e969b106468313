#pragma once
/// Tests a trained model and writes the results of a run.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "emotion_recognition/session.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/train/checkpoint.h"
#include "trainkit/train/evaluate.h"
#include "trainkit/train/train_step.h"
#include "trainkit/train/trainer.h"

namespace trainkit::emotion {

/// Result of a test.
struct TestResult {
  /// Confusion matrix (C, C) int64, one row per true label.
  at::Tensor counts;
  ClassificationScores scores;
  /// Probability of each label, (clips, C) float32; zeros for an unreadable clip.
  at::Tensor probabilities;
  /// Accuracy of always predicting the most frequent label of the training part.
  double majority = 0;
  /// Number of unreadable test clips; no score includes them.
  int64_t unreadable = 0;
  /// Unreadable clips that this rank met.
  std::vector<BadSample> bad_samples = {};

  /// "accuracy", "weighted_f1", "macro_f1", "majority" and "unreadable".
  Metrics metrics() const;
};

/// Adds "weighted_f1" and "macro_f1" of an evaluation to its metrics, from `counts`; NaN if another rank failed. A
/// collective: all ranks call it. Errors: those of EvaluationCounts::take.
absl::Status add_scores(EvaluationCounts& counts, const Placement& placement, Metrics& metrics);

/// Classifies each clip of `dataset` once, over all devices and ranks. A collective: all ranks call it and get the same
/// result. Errors: those of the loader and of other ranks.
absl::StatusOr<TestResult> test_model(DeviceReplicator& devices, const Session& session,
                                      const std::shared_ptr<const Dataset>& dataset, const RunOptions& run,
                                      const MachineInfo& machine, const Placement& placement, Precision precision);

/// Writes to `folder` (results_dir()): scores.json (with the step of the tested weights), predictions.csv (true label,
/// predicted label and all probabilities of each clip) and confusion.svg. Errors: exit code 6.
absl::Status write_results(const std::string& folder, const Session& session, const TestResult& result,
                           const BestModel& best);

/// Writes what the run's report shows: `<folder>/report.json` with scores, labels, the confusion matrix, and the clips
/// that the model got wrong or was least sure of. Errors: exit code 6.
absl::Status write_result_page(const std::string& folder, const Session& session, const TestResult& result,
                               int64_t tested_step);

/// Formats the scores of each label as a Markdown table.
std::string class_table(const std::vector<std::string>& labels, const TestResult& result);

/// Formats the scores: "accuracy 61.20%  weighted F1 59.91%  macro F1 41.02%  (always the most frequent
/// label: 48.12%)".
std::string describe_scores(const Metrics& metrics);

/// Formats mean and standard deviation over the folds: "5 folds    accuracy 41.20 +- 3.10%  weighted F1 ...".
std::string describe_folds(const Metrics& metrics, int64_t folds);

/// Formats the scores of validation and test as lines. `scores` is empty after a signal. `tested_step` is the step of
/// the tested weights; -1 means the last ones.
std::string describe_result(const TrainerResult& result, const Metrics& scores, int64_t tested_step,
                            const std::string& output_dir);

}  // namespace trainkit::emotion
