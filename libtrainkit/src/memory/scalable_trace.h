#pragma once
/// Prediction of a memory trace at another batch size.

#include <absl/status/statusor.h>

#include <cstdint>
#include <vector>

#include "trainkit/memory/memory_trace.h"

namespace trainkit {

/// Predicts the trace of the same work at any batch size from its traces at two batch sizes.
///
/// Aligns the two traces: two blocks match if they have the same class, are allocated and freed in the same phases, and
/// have the same position in a longest common subsequence. The size of each block is then a line through its two
/// points, and the peak is that of the whole trace. The peak moves with the batch size from forward to backward to the
/// update; a line through two peaks cannot model this.
class ScalableTrace {
 public:
  /// `small` was recorded with `small_batch` rows and `large` with `large_batch` > `small_batch`, both in the same
  /// phases. Returns kFailedPrecondition if more than a tenth of the blocks have no counterpart: the work is then not
  /// the same.
  static absl::StatusOr<ScalableTrace> create(const MemoryTrace& small, int64_t small_batch, MemoryTrace large,
                                              int64_t large_batch);

  /// Returns the trace at `batch` rows, at least 1. Blocks that the small trace lacks are assumed to grow with the
  /// batch.
  MemoryTrace at(int64_t batch) const;

  /// Number of blocks of the larger trace without a counterpart in the smaller one.
  int64_t unmatched() const { return unmatched_; }

 private:
  MemoryTrace trace_;  // recorded at large_batch_
  std::vector<double> bytes_per_row_;
  int64_t large_batch_ = 0;
  int64_t unmatched_ = 0;
};

}  // namespace trainkit
