#pragma once
/// Counts the predictions of an evaluation.

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <mutex>
#include <vector>

#include "trainkit/data/batch.h"
#include "trainkit/distributed/process_group.h"
#include "trainkit/train/evaluate.h"

namespace trainkit::emotion {

/// Counts (label, prediction) pairs over all replicas, for scores that are not means over rows, such as F1.
/// Thread-safe.
class EvaluationCounts {
 public:
  explicit EvaluationCounts(int64_t num_classes) : num_classes_(num_classes) {}

  /// Counts the rows of `batch` by its "label" and the largest of `scores` (B, C), without padding rows. Does not
  /// synchronise.
  void add(const Batch& batch, const at::Tensor& scores);

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

}  // namespace trainkit::emotion
