#pragma once
/// What a model says of the rows of an evaluation, counted.

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <mutex>
#include <vector>

#include "trainkit/data/batch.h"
#include "trainkit/distributed/process_group.h"
#include "trainkit/train/confusion_matrix.h"

namespace trainkit::emotion {

/// Counts of (label, prediction) over all replicas, for scores that are no mean over the rows.
class EvaluationCounts {
 public:
  explicit EvaluationCounts(int64_t num_classes) : num_classes_(num_classes) {}

  /// Counts the rows of `batch`, by its "label" and the largest of `scores`, (B, C), but those that only repeat others.
  /// Any thread; the host does not wait for the device.
  void add(const Batch& batch, const at::Tensor& scores);

  /// (C, C) int64 on the CPU: the counts of all replicas and ranks, a row for each label; counts from zero afterwards.
  /// All ranks call it. Errors: those of other ranks.
  absl::StatusOr<at::Tensor> take(ProcessGroup* group);

 private:
  struct Part {
    at::Device device;
    ConfusionMatrix counts;
  };
  int64_t num_classes_;
  std::mutex mutex_;
  std::vector<Part> parts_;  // of each device
};

}  // namespace trainkit::emotion
