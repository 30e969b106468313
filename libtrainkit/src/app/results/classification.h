#pragma once
/// Parts that trainers of classifiers share: a weighted loss, counts of an evaluation, a picture of a confusion matrix.

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "trainkit/data/batch.h"
#include "trainkit/distributed/process_group.h"
#include "trainkit/train/evaluate.h"

namespace trainkit {

/// Returns class weights (C) float32, inversely proportional to the row counts of the classes, with mean 1 over the
/// rows; 0 for a class without rows.
at::Tensor class_weights(const std::vector<int64_t>& counts);

/// Computes the cross-entropy of a classifier, with class weights and label smoothing. The sum is divided by the number
/// of rows, not by the sum of the weights: so the replicas' losses combine to that of one process on the whole batch.
/// Thread-safe.
class ClassificationLoss {
 public:
  /// @param weights (C) float32; an undefined tensor weights all classes alike.
  explicit ClassificationLoss(at::Tensor weights, double label_smoothing = 0);

  /// Returns the loss, a scalar, of `scores` (N, C) and `labels` (N) int64. Copies the weights once to each device.
  at::Tensor operator()(const at::Tensor& scores, const at::Tensor& labels);

 private:
  at::Tensor weights_on(at::Device device);
  double label_smoothing_;
  std::mutex mutex_;
  std::vector<at::Tensor> weights_;  // one copy per device; empty without weights
};

/// Counts (label, prediction) pairs over all replicas, for scores that are not means over rows, such as F1.
/// Thread-safe.
class EvaluationCounts {
 public:
  explicit EvaluationCounts(int64_t num_classes) : num_classes_(num_classes) {}

  /// Counts the rows of `batch` by `labels` (B) int64 and the largest of `scores` (B, C), without padding rows. Does
  /// not synchronise.
  void add(const Batch& batch, const at::Tensor& labels, const at::Tensor& scores);

  /// Returns the counts of all replicas and ranks, (C, C) int64 on the CPU with one row per label, and resets them. A
  /// collective: all ranks call it. Synchronises. Errors: those of other ranks.
  absl::StatusOr<at::Tensor> take(ProcessGroup* group);

 private:
  struct Part {
    at::Device device;
    ConfusionMatrix counts;
  };
  int64_t num_classes_;
  std::mutex mutex_;
  std::vector<Part> parts_;  // one per device
};

/// Draws a confusion matrix, (C, C) int64 on the CPU, as SVG: one row per true label, each cell shaded by its share of
/// the row.
std::string draw_confusion(const at::Tensor& counts, const std::vector<std::string>& labels);

}  // namespace trainkit
