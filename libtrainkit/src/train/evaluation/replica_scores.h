#pragma once
/// A score over replicas and ranks.

#include <absl/status/statusor.h>

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "trainkit/train/score.h"

namespace trainkit::detail {

/// A score of all replicas: one part for each device. Thread-safe.
class ReplicaScores {
 public:
  /// @param kind a score without rows, whose empty_on() makes the parts.
  explicit ReplicaScores(std::shared_ptr<const Score> kind) : kind_(std::move(kind)) {}

  /// Adds the rows of `batch`, without padding rows; `outputs` (B, ...), or of any shape without padding rows. Does
  /// not synchronise.
  void update(const at::Tensor& outputs, const Batch& batch);

  /// Returns the score of the rows of all replicas and ranks, on the CPU, and begins anew. A collective: all ranks call
  /// it; `group` is nullptr without ranks. Synchronises. Errors: those of other ranks.
  absl::StatusOr<std::unique_ptr<Score>> take(ProcessGroup* group);

 private:
  std::shared_ptr<const Score> kind_;
  std::mutex mutex_;
  std::vector<std::pair<at::Device, std::unique_ptr<Score>>> parts_;
};

}  // namespace trainkit::detail
