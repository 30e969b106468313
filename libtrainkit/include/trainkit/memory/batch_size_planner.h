#pragma once
/// Batch size from device memory: from a dry run or by measurement.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "trainkit/memory/memory_trace.h"

namespace trainkit {

class ScalableTrace;

/// Smallest memory of a GPU that a plan accepts. Less is a size without its unit: 24 means 24 bytes.
inline constexpr int64_t kLeastGpuMemory = int64_t{64} << 20;

/// Share of each device in the rows of a step.
struct BatchShare {
  int64_t per_device = 0;  ///< max(1, total / devices)
  /// Rows of `total` that no device gets; negative if there are more devices than rows.
  int64_t lost = 0;
};
BatchShare share_batch(int64_t total, int64_t devices);

/// Predicted memory of one device in a step.
struct MemoryPrediction {
  int64_t batch_size = 0;
  /// Live bytes at the peak, without kernel workspaces.
  MemoryBytes peak;
  /// The same by the model of CUDA's caching allocator.
  DeviceMemory device;
};

/// Predicts the memory of a step at any batch size from recordings at small batch sizes.
class MemoryEstimate {
 public:
  /// Records the work (a step and its setup) with `batch_size` rows.
  using Record = std::function<absl::StatusOr<MemoryTrace>(int64_t batch_size)>;

  /// Records at three batch sizes, at first 2, 4 and 8, and predicts the peak at the third from the other two. If the
  /// error exceeds half a percent (kernels choose algorithms by size), doubles all three while the third is at most
  /// `max_batch_size` (at least 4). Returns the errors of `record`, and kFailedPrecondition if the allocations differ
  /// in structure at each batch size.
  static absl::StatusOr<MemoryEstimate> create(const Record& record, int64_t max_batch_size = 64);

  MemoryPrediction predict(int64_t batch_size) const;
  /// The trace behind the prediction, without workspaces.
  MemoryTrace trace(int64_t batch_size) const;

  /// Relative error |predicted - counted| / counted at `check_batch_size`, without workspaces.
  double check_error() const { return check_error_; }
  int64_t check_batch_size() const { return check_batch_size_; }

 private:
  friend class BatchSizePlanner;
  explicit MemoryEstimate(std::shared_ptr<const ScalableTrace> trace) : trace_(std::move(trace)) {}
  /// Adds the micro-batches that a step with accumulation keeps and the recordings lack.
  MemoryTrace with_kept(MemoryTrace trace, int64_t batch_size) const;

  std::shared_ptr<const ScalableTrace> trace_;
  /// Number of these micro-batches, and the bytes of one with `kept_rows_` rows.
  int64_t kept_ = 0;
  MemoryBytes kept_bytes_;
  int64_t kept_rows_ = 0;  // 0 until it is recorded
  double check_error_ = 0;
  int64_t check_batch_size_ = 0;
};

struct BatchSizePlannerOptions {
  /// Memory of one device for the run, in bytes; 0 means unlimited.
  int64_t device_bytes = 0;
  /// Fraction of it that a plan may fill.
  double usable = 0.9;
  /// Memory that the recording does not count: the driver's context, workspaces of cuBLAS and cuDNN.
  int64_t reserve_bytes = 0;
  int64_t devices = 1;
  /// Rows of a step over all devices and micro-batches. A plan divides each device's share evenly. 0 chooses
  /// micro-batches that are a power of two.
  int64_t global_batch_size = 0;
  /// Micro-batches per step if no global batch size is given.
  int64_t grad_accum_steps = 1;
  /// Largest micro-batch, in rows.
  int64_t max_batch_size = 2048;
};

struct BatchSizePlan {
  int64_t batch_size = 1;  ///< Rows per device and micro-batch.
  int64_t devices = 1;
  int64_t grad_accum_steps = 1;
  /// Rows of the requested global batch that are lost by rounding.
  int64_t lost_rows = 0;
  MemoryPrediction memory;
  bool fits = true;

  int64_t global_batch_size() const { return batch_size * devices * grad_accum_steps; }
};

/// Chooses the largest micro-batch that fits and the number of accumulation steps.
///
///   auto planner = BatchSizePlanner::create(record_step, {.device_bytes = 24LL << 30, .devices = 3,
///                                                         .global_batch_size = 768}).value();
///   BatchSizePlan plan = planner.plan().value();     // 64 x 3 devices x 4 accumulated
///
/// Not thread-safe.
class BatchSizePlanner {
 public:
  /// Records one step of `micro_batches` micro-batches with `batch_size` rows each.
  using Record = std::function<absl::StatusOr<MemoryTrace>(int64_t batch_size, int64_t micro_batches)>;

  /// Returns kInvalidArgument if options are out of range; the message names all of them.
  static absl::StatusOr<BatchSizePlanner> create(Record record, const BatchSizePlannerOptions& options,
                                                 int64_t max_recorded_batch_size = 64);

  /// Returns the plan. If not even one row per micro-batch fits, the plan has one row and `fits` is false. Returns the
  /// errors of the recording.
  absl::StatusOr<BatchSizePlan> plan();
  /// Runs `attempt` with `plan`. If it runs out of memory, returns the plan with the largest batch size at which
  /// `attempt` succeeds (measure_batch_size), with `fits` false if there is none. Returns other errors of `attempt`.
  using Attempt = std::function<absl::Status(int64_t batch_size, int64_t micro_batches)>;
  absl::StatusOr<BatchSizePlan> confirm(BatchSizePlan plan, const Attempt& attempt);
  /// Predicts the memory for `batch_size` rows per micro-batch and any number of accumulation steps.
  absl::StatusOr<BatchSizePlan> describe(int64_t batch_size, int64_t grad_accum_steps);

  const BatchSizePlannerOptions& options() const { return options_; }
  /// The estimate used for plans with this number of micro-batches per step. Steps of one and of two micro-batches are
  /// recorded. From three on, each further one adds the memory of a kept micro-batch: the difference between recordings
  /// of three and of two.
  absl::StatusOr<MemoryEstimate> estimate(int64_t grad_accum_steps);

 private:
  BatchSizePlanner(Record record, const BatchSizePlannerOptions& options, int64_t max_recorded_batch_size)
      : record_(std::move(record)), options_(options), max_recorded_batch_size_(max_recorded_batch_size) {}
  bool fits(const MemoryEstimate& estimate, int64_t batch_size) const;

  Record record_;
  BatchSizePlannerOptions options_;
  int64_t max_recorded_batch_size_;
  std::optional<MemoryEstimate> estimates_[2];  // for one micro-batch, for several
};

/// Finds the largest batch size at which `attempt` succeeds: doubles from 1 until kResourceExhausted, then bisects, up
/// to `max_batch_size`. `attempt` must leave no state behind and must release its memory. Any other error ends the
/// search and is returned. Returns kResourceExhausted if not even one row succeeds. Throws c10::ValueError if
/// max_batch_size is less than 1.
absl::StatusOr<int64_t> measure_batch_size(const std::function<absl::Status(int64_t batch_size)>& attempt,
                                           int64_t max_batch_size);

}  // namespace trainkit
