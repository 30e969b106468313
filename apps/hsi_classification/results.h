#pragma once
/// Evaluates a trained model on the scene: scores on the test pixels, and maps.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <map>
#include <string>
#include <vector>

#include "hsi_classification/session.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/train/evaluate.h"
#include "trainkit/train/train_step.h"
#include "trainkit/train/trainer.h"

namespace trainkit::hsi {

struct TestResult {
  /// (C, C) int64: one row per true class, over the test pixels.
  at::Tensor counts;
  ClassificationScores scores;
  /// Share of the test pixels inside a training patch.
  double leak = 0;
  /// (height, width) int64: predicted class 1..C; 0 for pixels that were not classified.
  at::Tensor map;

  /// Returns "oa", "aa", "kappa", "leak" and the recall of each class, for summary.json and the logs.
  Metrics metrics(const Scene& scene) const;
};

/// Returns "aa", and "recall.NAME" of each class that has rows.
Metrics class_metrics(const Scene& scene, const ClassificationScores& scores);

/// Classifies the test pixels, or (`whole_scene`) all pixels, and scores the test pixels. Each pixel counts once over
/// all devices and ranks. All ranks call it and get the same result. Errors: those of the loader and of other ranks.
absl::StatusOr<TestResult> test_model(DeviceReplicator& devices, const Session& session, const Split& split,
                                      const RunOptions& run, const MachineInfo& machine, const Placement& placement,
                                      Precision precision, bool whole_scene);

/// Writes to `folder` (results_dir()): scores.json, confusion.svg and, with `maps`, classification.png,
/// ground_truth.png and errors.png (enlarged, with a legend) and maps.mat ("classification" and "ground_truth" with the
/// label values of the scene's file, "split": 1 train, 2 validation, 3 test). Exit code 6.
absl::Status write_results(const std::string& folder, const Session& session, const Split& split,
                           const TestResult& result, bool maps);

/// Writes what the run's report shows: `<folder>/report.json` with scores, maps, classes and the confusion matrix.
/// `tested_step` is the step of the tested weights; -1 means the last ones. Errors: exit code 6.
absl::Status write_result_page(const std::string& folder, const Session& session, const Split& split,
                               const TestResult& result, bool maps, int64_t tested_step);

/// Formats "oa 99.61%  aa 99.52%  kappa 0.9951 (leak 97.2%)".
std::string describe_scores(const Metrics& metrics);

/// Formats classes and scores as a Markdown table.
std::string class_table(const Scene& scene, const TestResult& result);

/// Formats the scores of validation and test, one line each. `scores` is empty after a signal. `tested_step` is the
/// step of the tested weights; -1 means the last ones.
std::string describe_result(const TrainerResult& result, const Metrics& scores, int64_t tested_step);

}  // namespace trainkit::hsi
