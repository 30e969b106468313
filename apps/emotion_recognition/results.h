#pragma once
/// What a trained model makes of clips that it has not seen.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "emotion_recognition/session.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/train/best_model.h"
#include "trainkit/train/confusion_matrix.h"
#include "trainkit/train/evaluate.h"
#include "trainkit/train/train_step.h"
#include "trainkit/train/trainer.h"

namespace trainkit::emotion {

struct TestResult {
  /// (C, C) int64: a row for each true label.
  at::Tensor counts;
  ClassificationScores scores;
  /// (clips, C) float32: how likely each label is; zeros for a clip that could not be read.
  at::Tensor probabilities;
  /// Accuracy of always saying the label that training has most of.
  double majority = 0;
  /// Clips of the test that could not be read; they are in no score.
  int64_t unreadable = 0;

  /// "accuracy", "weighted_f1", "macro_f1", "majority" and "unreadable".
  Metrics metrics() const;
};

/// Adds "weighted_f1" and "macro_f1" to the metrics of an evaluation whose rows `counts` has counted; NaN if another
/// rank failed. All ranks call it. Errors: those of EvaluationCounts::take.
absl::Status add_scores(EvaluationCounts& counts, const Placement& placement, Metrics& metrics);

/// Classifies the clips of `dataset`, each once over all devices and ranks. All ranks call it and get the same. Errors:
/// the loader's, and those of other ranks.
absl::StatusOr<TestResult> test_model(DeviceReplicator& devices, const Session& session,
                                      const std::shared_ptr<const Dataset>& dataset, const RunOptions& run,
                                      const Machine& machine, const Placement& placement, Precision precision);

/// Writes scores.json, which says whose weights were tested, predictions.csv (each clip's label, the predicted one and
/// how likely each is) and confusion.svg. Exit code 6.
absl::Status write_results(const std::string& output_dir, const Session& session, const TestResult& result,
                           const BestModel& best);

/// A table of the labels and their scores, as lines of Markdown.
std::string class_table(const std::vector<std::string>& labels, const TestResult& result);

/// The confusion matrix as a picture (SVG): a row for each true label, shaded by its share of the row.
std::string draw_confusion(const at::Tensor& counts, const std::vector<std::string>& labels);

/// "accuracy 61.20%  weighted F1 59.91%  macro F1 41.02%  (always 'neutral': 48.12%)".
std::string describe_scores(const Metrics& metrics);

/// The scores of validation and test, each line with a line end. `scores` is empty after a signal; `tested_step` is the
/// step of the tested weights, -1 for the last ones.
std::string describe_result(const TrainerResult& result, const Metrics& scores, int64_t tested_step,
                            const std::string& output_dir);

}  // namespace trainkit::emotion
