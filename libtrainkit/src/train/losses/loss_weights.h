#pragma once
// Weighs the losses of a step's micro-batches, replicas and ranks.

#include <cstdint>

#include "trainkit/distributed/device_replicator.h"

namespace trainkit::detail {

class MemoryRecovery;

// Note [Weights of losses]
// ~~~~~~~~~~~~~~~~~~~~~~~~
// The gradient of a step must equal that of one process on all rows: sum(weight_i * grad_i) / sum(weight_i) over all
// micro-batches, replicas and ranks. The denominator is only known at the end of the step, but each loss is scaled
// before its backward. Each loss is therefore scaled by its share, weight / expected(), with an estimate of the
// denominator that is equal everywhere, and the update multiplies gradients and metrics by expected() / actual weight.
// If all micro-batches weigh the same, the factor is exactly 1 and nothing is multiplied.
// - A single replica estimates from the first micro-batch of each step that has a weight.
// - Several replicas or ranks cannot, since their first weights differ. They agree once per run on unit(), the mean
//   weight of a replica's first batch. It affects only the rounding, and it is saved in checkpoints so that a resumed
//   run rounds in the same way. A rank whose forward throws in that first step still takes part in the agreement,
//   because the others wait for it.
// A weight that is 1e30 times the estimate is refused: the loss would overflow.
// A loss of weight 0 may be NaN (a mean over nothing). It has no backward and its values are not added: NaN * 0 is NaN.
// A step of total weight 0 is skipped.

/// The threads of the replicas call share_of() and take_part(); the thread of the step calls the rest, between them.
class LossWeights {
 public:
  /// @param micro_batches per step, on each rank
  LossWeights(DeviceReplicator& devices, int64_t micro_batches, MemoryRecovery& memory);

  /// Factor of a loss, and the unit that it was computed with; 0 for a single replica.
  struct Share {
    double share = 0;
    double unit = 0;
  };
  /// Returns the factor of a loss of `weight`, whose batch is split into `split` micro-batches. In the first step of a
  /// run with several replicas it waits for all of them. Throws c10::ValueError for a weight that is 1e30 times the
  /// estimate.
  Share share_of(int64_t replica, double weight, int64_t split);
  /// Lets a replica whose forward threw take part in what share_of() of the others waits for. Ignores errors.
  void take_part(int64_t replica);

  /// Adds the weight of a replica's part of a micro-batch that has succeeded on all replicas.
  void add(double weight) { sum_ += weight; }
  /// Sets the sum of a step that a graph replays.
  void set_sum(double weight) { sum_ = weight; }
  /// Sum of the micro-batches so far on this rank.
  double sum() const { return sum_; }
  /// Estimate for the whole step on all ranks.
  double expected() const { return expected_; }

  /// Mean weight of a replica's batch, agreed on in the first step of a run with several replicas; 0 before.
  double unit() const { return unit_; }
  void set_unit(double unit) { unit_ = unit; }

  /// Begins the first attempt of a step.
  void begin() { unit_at_start_ = unit_; }
  /// Drops the sum of a step that has ended or failed.
  void clear() { sum_ = 0; }
  /// Begins another attempt.
  void restart() { unit_ = unit_at_start_; }

 private:
  double agree_on_unit(int64_t replica, double weight);

  DeviceReplicator& devices_;
  int64_t micro_batches_;
  MemoryRecovery& memory_;
  double sum_ = 0;
  double unit_ = 0;
  double unit_at_start_ = 0;
  double expected_ = 0;
};

}  // namespace trainkit::detail
