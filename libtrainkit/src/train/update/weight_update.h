#pragma once
// Updates the weights at the end of a step.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/time_sum.h"
#include "distributed/replicas/replica_strategy.h"
#include "train/update/optimizer_copies.h"
#include "trainkit/amp/grad_scaler.h"
#include "trainkit/optim/lr_scheduler.h"
#include "trainkit/optim/optimizer.h"
#include "trainkit/train/step_options.h"

namespace trainkit::detail {

class Agreement;
class LossWeights;
class MemoryRecovery;
class MetricSums;
class StepSnapshot;

/// The scaler of `options`; it does nothing unless these are those of kFp16.
GradScaler make_scaler(const TrainStepOptions& options);

/// Unscales, clips, updates all copies of the weights, moves their averages, advances scaler and schedule. Reads
/// nothing from a device. See Note [Stages of an update]. Used by the thread of the step.
class WeightUpdate {
 public:
  /// Keeps references to the arguments. `scheduler` may be null. `scaler` is that of several updates, whose owner calls
  /// GradScaler::update() after the last one; null: its own.
  WeightUpdate(ReplicaStrategy& devices, Optimizer& optimizer, const TrainStepOptions& options, LRScheduler* scheduler,
               MemoryRecovery& memory, GradScaler* scaler = nullptr);

  GradScaler& scaler() { return scaler_; }
  const GradScaler& scaler() const { return scaler_; }
  OptimizerCopies& copies() { return copies_; }
  const OptimizerCopies& copies() const { return copies_; }

  /// Updates the weights from the summed gradients and releases these, or only releases them if nothing counts. Adds
  /// grad_norm, skipped_in_a_row and first_nonfinite to the metrics of `sums`. A skipped step gets the buffers of
  /// `snapshot` back. Waits for no other rank, except with sharding.
  void run(const Agreement& agreement, const LossWeights& weights, MetricSums& sums, StepSnapshot& snapshot);
  /// Calls `read` in each update when the gradients are reduced and unscaled.
  void set_on_gradients(std::function<void()> read) { on_gradients_ = std::move(read); }
  /// Returns whether an update since the last call has used the scaler of several.
  bool take_scaler_use() { return std::exchange(has_used_scaler_, false); }
  /// Drops the gradients of all copies.
  void release_gradients();
  /// Drops a step that failed, its gradients and the scaler's part in it.
  void drop();
  /// Seconds of all run() so far. Any thread may call it.
  double seconds() const { return time_.seconds(); }

  // ---- Captured steps.

  /// Keeps counters of optimizers and skips on the device, at addresses that do not change.
  void count_on_device();
  /// Makes room in the schedule's table for the next steps, since a graph cannot.
  void reserve_schedule();
  /// Versions of what a graph of the update depends on, other than addresses.
  std::vector<int64_t> versions() const;
  /// Follows a step that a graph has run.
  void count_replayed_step();

 private:
  void update(const Agreement& agreement, const LossWeights& weights, MetricSums& sums, StepSnapshot& snapshot);
  void skip(MetricSums& sums);
  std::vector<at::Tensor> update_optimizers(const Agreement& agreement, MetricSums& sums);
  std::vector<at::Tensor> update_unless_nonfinite(const Agreement& agreement, MetricSums& sums, StepSnapshot& snapshot);
  void read_gradients();
  void count_skips(const at::Tensor& found_inf, MetricSums& sums, StepSnapshot& snapshot);

  ReplicaStrategy& devices_;
  LRScheduler* scheduler_;
  MemoryRecovery& memory_;
  double grad_clip_;
  bool to_none_;  // zero_grad_set_to_none
  bool skips_nonfinite_;
  std::function<void()> on_gradients_;
  GradScaler own_scaler_;
  GradScaler& scaler_;
  bool has_used_scaler_ = false;
  OptimizerCopies copies_;
  bool keeps_count_ = false;                    // at one address
  at::Tensor skipped_in_a_row_, none_skipped_;  // float32, on the device
  TimeSum time_;
};

}  // namespace trainkit::detail
