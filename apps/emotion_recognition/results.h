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
#include "trainkit/logging/logger.h"
#include "trainkit/train/confusion_matrix.h"
#include "trainkit/train/evaluate.h"
#include "trainkit/train/train_step.h"
#include "trainkit/train/trainer.h"

namespace trainkit {

struct TestResult {
  /// (C, C) int64: a row for each true label.
  at::Tensor counts;
  ClassificationScores scores;
  /// Accuracy of always saying the label that training has most of.
  double majority = 0;
  /// Clips of the test that could not be read; they are in no score.
  int64_t unreadable = 0;

  double weighted_f1() const;
  /// Over the labels that occur or are said, as scikit-learn takes it.
  double macro_f1() const;
  /// "accuracy", "weighted_f1", "macro_f1", "majority" and "unreadable".
  Metrics metrics() const;
};

/// Classifies the clips of `dataset`, each once over all devices and ranks. All ranks call it and get the same. Errors:
/// the loader's, and those of other ranks.
absl::StatusOr<TestResult> test_model(DeviceReplicator& devices, const Session& session,
                                      const std::shared_ptr<const Dataset>& dataset, const RunOptions& run,
                                      const Machine& machine, const Placement& placement, Precision precision);

/// Writes scores.json and confusion.svg. Exit code 6.
absl::Status write_results(const std::string& output_dir, const Session& session, const TestResult& result);

/// A table of the labels and their scores, as lines of Markdown.
std::string class_table(const std::vector<std::string>& labels, const TestResult& result);

/// The confusion matrix as a picture (SVG): a row for each true label, shaded by its share of the row.
std::string draw_confusion(const at::Tensor& counts, const std::vector<std::string>& labels);

/// "accuracy 61.20%  weighted F1 59.91%  macro F1 41.02%  (always 'neutral': 48.12%)".
std::string describe_scores(const Metrics& metrics);

/// The last lines of a run. `scores` is empty if the run was stopped.
std::string describe_result(const TrainerResult& result, const RunOptions& run, const Metrics& scores);

}  // namespace trainkit
