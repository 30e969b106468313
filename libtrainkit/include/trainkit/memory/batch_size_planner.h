#pragma once
/// Which batch fits: from a table, from a dry run, or by trying.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "trainkit/memory/caching_allocator_model.h"
#include "trainkit/memory/memory_trace.h"

namespace trainkit {

/// A row of the table of settings by memory.
struct MemoryPreset {
  int64_t global_batch_size = 0;
  /// Keep what a frozen encoder computes on the device.
  bool use_cache = false;
  int64_t devices = 0;
};

/// By the memory of one device: over 8 GiB 2048 rows, with a cache, on 8 devices; from 4 to 8 GiB inclusive 1024, with
/// a cache, on 4; below 512, without, on 2.
MemoryPreset preset_for_memory(int64_t device_bytes);

/// Rows of a step divided among devices.
struct BatchShare {
  int64_t per_device = 0;  ///< max(1, total / devices)
  /// Rows of `total` that no device gets; negative where there are more devices than rows.
  int64_t lost = 0;
};
BatchShare share_batch(int64_t total, int64_t devices);

/// The memory of one device in a step.
struct MemoryPrediction {
  int64_t batch_size = 0;
  /// What lives at the peak, kernels' workspaces left out.
  MemoryBytes peak;
  /// The same by the model of CUDA's allocator.
  DeviceMemory device;
  /// The most that CPU kernels take as workspaces, wherever that is.
  int64_t workspace_bytes = 0;
};

/// Predicts the memory of a step at any batch from steps at small ones.
class MemoryEstimate {
 public:
  /// Records the work (a step, with what it stands on) with `batch_size` rows.
  using Record = std::function<absl::StatusOr<MemoryTrace>(int64_t batch_size)>;

  /// Records at three batches, 2, 4 and 8 at first: the peak at the third is predicted from the two others. Where that
  /// is off by more than half a percent (kernels choose their way by size), all are doubled, as long as the third is
  /// at most `max_batch_size` (at least 4). Errors: those of `record`, and kFailedPrecondition if the work allocates
  /// otherwise at each batch.
  static absl::StatusOr<MemoryEstimate> create(const Record& record, int64_t max_batch_size = 64);

  MemoryPrediction predict(int64_t batch_size) const;
  /// The trace behind it, without workspaces.
  MemoryTrace trace(int64_t batch_size) const { return trace_.at(batch_size).without(MemoryClass::kWorkspace); }

  /// |predicted - counted| / counted at the third batch (workspaces left out), and that batch.
  double check_error() const { return check_error_; }
  int64_t check_batch_size() const { return check_batch_size_; }

 private:
  explicit MemoryEstimate(ScalableTrace trace) : trace_(std::move(trace)) {}
  ScalableTrace trace_;
  double check_error_ = 0;
  int64_t check_batch_size_ = 0;
};

struct BatchSizePlannerOptions {
  /// What one device has for the run; 0 is without end.
  int64_t device_bytes = 0;
  /// The share of it that a plan may fill.
  double usable = 0.9;
  /// Taken beside what is counted: the driver's context, workspaces of cuBLAS and cuDNN.
  int64_t reserve_bytes = 0;
  int64_t devices = 1;
  /// Rows of a step over all devices and accumulation, each device's share of which a plan divides evenly; 0:
  /// micro-batches of a power of two.
  int64_t global_batch_size = 0;
  /// Micro-batches of a step where there is no global batch.
  int64_t grad_accum_steps = 1;
  /// Rows of a micro-batch at most. The guides' largest by default.
  int64_t max_batch_size = 2048;
};

struct BatchSizePlan {
  int64_t batch_size = 1;  ///< Per device and micro-batch.
  int64_t devices = 1;
  int64_t grad_accum_steps = 1;
  /// Rows of the asked-for global batch that rounding loses.
  int64_t lost_rows = 0;
  MemoryPrediction memory;
  bool fits = true;

  int64_t global_batch_size() const { return batch_size * devices * grad_accum_steps; }
};

/// Chooses the largest micro-batch that fits, and how often to accumulate it.
///
///   auto planner = BatchSizePlanner::create(record_step, {.device_bytes = 24LL << 30, .devices = 3,
///                                                         .global_batch_size = 768}).value();
///   BatchSizePlan plan = planner.plan().value();     // 64 x 3 devices x 4 accumulated
///
/// Not thread-safe.
class BatchSizePlanner {
 public:
  /// Records a step of so many micro-batches with so many rows each.
  using Record = std::function<absl::StatusOr<MemoryTrace>(int64_t batch_size, int64_t micro_batches)>;

  /// kInvalidArgument names every option that is out of range.
  static absl::StatusOr<BatchSizePlanner> create(Record record, const BatchSizePlannerOptions& options,
                                                 int64_t max_recorded_batch_size = 64);

  /// The plan; with micro-batches of one row and `fits` false if even they do not fit. Errors of the recording.
  absl::StatusOr<BatchSizePlan> plan();
  /// `plan`, or, where `attempt` at its batch is out of memory, the one with the largest batch that `attempt` runs with
  /// (measure_batch_size); `fits` false if that is none. Other errors of `attempt` are returned.
  using Attempt = std::function<absl::Status(int64_t batch_size, int64_t micro_batches)>;
  absl::StatusOr<BatchSizePlan> confirm(BatchSizePlan plan, const Attempt& attempt);
  /// What `batch_size` rows would take, accumulated or not.
  absl::StatusOr<BatchSizePlan> describe(int64_t batch_size, int64_t grad_accum_steps);

  const BatchSizePlannerOptions& options() const { return options_; }
  /// The estimate behind plans of one micro-batch a step, or of several.
  absl::StatusOr<const MemoryEstimate*> estimate(bool accumulates);

 private:
  BatchSizePlanner(Record record, const BatchSizePlannerOptions& options, int64_t max_recorded_batch_size)
      : record_(std::move(record)), options_(options), max_recorded_batch_size_(max_recorded_batch_size) {}
  bool fits(const MemoryEstimate& estimate, int64_t batch_size) const;

  Record record_;
  BatchSizePlannerOptions options_;
  int64_t max_recorded_batch_size_;
  std::optional<MemoryEstimate> estimates_[2];  // of one micro-batch, of several
};

/// The largest batch that `attempt` runs with, by trying: doubled from 1 until kResourceExhausted, then halved between,
/// at most `max_batch_size`. `attempt` leaves nothing behind, and has given back what it held. Any other error ends the
/// search and is returned; kResourceExhausted if not even one row runs.
absl::StatusOr<int64_t> measure_batch_size(const std::function<absl::Status(int64_t batch_size)>& attempt,
                                           int64_t max_batch_size);

}  // namespace trainkit
