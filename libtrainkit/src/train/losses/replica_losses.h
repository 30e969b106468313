#pragma once
// Computes the losses of the replicas' rows.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/base/time_sum.h"
#include "distributed/replicas/replica_strategy.h"
#include "trainkit/amp/grad_scaler.h"
#include "trainkit/data/batch.h"
#include "trainkit/train/loss.h"
#include "trainkit/train/player.h"
#include "trainkit/train/step_options.h"

namespace trainkit::detail {

class LossWeights;

/// Result of a replica's share of a micro-batch; no output if it had no rows.
struct ReplicaResult {
  std::optional<LossOutput> output = std::nullopt;
  double weight = 0;
  double share = 0;  // see LossWeights
  double unit = 0;
  std::string nonfinite = {};  // origin of a loss that is not finite
};

/// Runs the forward of one micro-batch at a time: begin(), then scaled_loss() in the thread of each replica.
class ReplicaLosses {
 public:
  /// A micro-batch of step `step` (from 1), one of `split` parts of its batch.
  struct Part {
    const Batch& batch;
    const LossFunction& loss;
    int64_t split;
    int64_t step;
    const std::vector<Shared>* shared = nullptr;  // by replica
  };

  ReplicaLosses(ReplicaStrategy& devices, const TrainStepOptions& options, LossWeights& weights, GradScaler& scaler);
  ReplicaLosses(const ReplicaLosses&) = delete;
  ReplicaLosses& operator=(const ReplicaLosses&) = delete;

  /// Prepares scaled_loss() of a micro-batch.
  void begin(const LossFunction& loss);
  /// Returns the loss of the replica's rows, scaled by their share and by the GradScaler, for its backward. Undefined
  /// if nothing follows: no rows, or none that counts. Sets the replica's result.
  at::Tensor scaled_loss(int64_t replica, const Part& part);
  /// Computes the shared tensors of players for each replica's rows, with gradients.
  std::vector<Shared> share(const Batch& batch, const SharedFunction& function);
  /// By replica, of the last micro-batch.
  const std::vector<ReplicaResult>& results() const { return results_; }
  /// Releases the outputs.
  void clear() { results_.clear(); }

  /// Returns whether SyncBatchNorm makes the replicas wait for each other in forward and backward. All of them then run
  /// each micro-batch.
  bool meet() const { return meet_; }
  /// Seconds in which the rows of the first replica were copied to its device. Any thread may call it.
  double copy_seconds() const { return copy_time_.seconds(); }

 private:
  Batch shard_of(const Batch& batch, int64_t replica);
  ReplicaResult run(int64_t replica, const Batch& shard, const LossFunction& loss, const Part& part);

  ReplicaStrategy& devices_;
  Precision precision_;
  bool finds_nonfinite_;
  LossWeights& weights_;
  GradScaler& scaler_;
  std::mutex scaler_mutex_;  // replicas scale their losses concurrently
  bool meet_ = false;
  std::vector<const LossFunction*> losses_;  // by replica
  std::vector<ReplicaResult> results_;       // a member to reuse its memory
  TimeSum copy_time_;
};

/// Returns a row on `device` that does not count: the first one of `batch`, or zeros if it has none.
Batch uncounted_row(const Batch& batch, at::Device device);

}  // namespace trainkit::detail
