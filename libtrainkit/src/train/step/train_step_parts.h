#pragma once
// Shared by the sources of TrainStep: train_step.cpp, step_batches.cpp, step_shares.cpp, step_retry.cpp and
// step_update.cpp.

#include <absl/status/status.h>

#include <array>
#include <atomic>
#include <chrono>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "distributed/agreement/step_consensus.h"
#include "train/run/late_scalars.h"
#include "trainkit/train/train_step.h"

namespace trainkit {

/// Result of a replica's share of a micro-batch; no output if it had no rows.
struct TrainStep::ReplicaResult {
  std::optional<LossOutput> output;
  double weight = 0;
  double share = 0;
  double unit = 0;
  std::string nonfinite = {};  // origin of a loss that is not finite
};

/// Begins to record the SyncBatchNorm layers of a replica, see zero_loss().
void begin_recording(torch::nn::Module& module, bool counts_rows);

/// Returns a loss whose backward gives the recorded SyncBatchNorm layers a part in the sums of the replicas, and the
/// gradient 0 to the parameters before them, or (`to_all`) to all parameters. Undefined if there is nothing to do.
/// `loss` is the replica's own.
at::Tensor zero_loss(const torch::nn::Module& module, const at::Tensor& loss, bool to_all);

/// Returns a row on `device` that does not count: the first one of `batch`, or zeros if it has none.
Batch uncounted_row(const Batch& batch, at::Device device);

/// A batch of the current step, kept for retries.
struct TrainStep::KeptBatch {
  Batch batch;
  const LossFunction* borrowed_loss = nullptr;  // the caller's, or
  LossFunction own_loss = nullptr;
  std::array<std::vector<at::Tensor>, 2> memory = {};  // reused between steps; on the host, double-buffered

  const LossFunction& loss() const { return borrowed_loss ? *borrowed_loss : own_loss; }
};

/// A micro-batch that failed on this rank while the others continue, see Note [Votes of a step].
struct TrainStep::DeferredFailure {
  std::string reason;
  bool again;  // the step can be retried
  std::exception_ptr exception;
};

/// The names of the metrics of all ranks, see average_over_ranks().
struct TrainStep::SharedNames {
  std::vector<std::string> names;                // in the same order on all ranks
  std::optional<LateScalars> ranks_with_others;  // number of ranks with other metrics, in the last call
};

namespace detail {

using StepClock = std::chrono::steady_clock;

/// Adds a duration to a counter of nanoseconds.
inline void add_time(std::atomic<int64_t>& sum, StepClock::duration time) {
  sum.fetch_add(std::chrono::nanoseconds(time).count(), std::memory_order_relaxed);
}

/// Returns the error of a step that failed on another rank.
absl::Status failed_elsewhere(const StepVerdict& verdict, int64_t step);

}  // namespace detail
}  // namespace trainkit
