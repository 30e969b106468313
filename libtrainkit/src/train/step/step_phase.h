#pragma once
// A step of one optimizer: what TrainStep runs for each player.

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "train/agreement/agreement.h"
#include "train/agreement/steps_in_flight.h"
#include "train/losses/loss_weights.h"
#include "train/losses/metric_sums.h"
#include "train/losses/replica_losses.h"
#include "train/losses/step_batches.h"
#include "train/retry/memory_recovery.h"
#include "train/retry/step_snapshot.h"
#include "train/step/step_capture.h"
#include "train/update/step_gradients.h"
#include "train/update/weight_update.h"
#include "trainkit/monitor/monitor.h"
#include "trainkit/train/step_metrics.h"
#include "trainkit/train/step_options.h"

namespace trainkit::detail {

/// The loop of a step of one player; its members do the work, each from what the ones before it have left.
class StepPhase final : public CapturableStep {
 public:
  /// @param scaler of all players, which the step updates after the last one; nullptr: its own
  StepPhase(ReplicaStrategy& devices, Optimizer& optimizer, const TrainStepOptions& options, LRScheduler* scheduler,
            GradScaler* scaler = nullptr)
      : options(options),
        memory(devices.device(), options.release_memory),
        weights(devices, options.grad_accum_steps, memory),
        update(devices, optimizer, options, scheduler, memory, scaler),
        losses(devices, options, weights, update.scaler()),
        sums(devices, memory),
        batches(options.grad_accum_steps),
        capture(devices, options, {memory, batches, weights, sums, update}),
        in_flight(devices_of(devices)),
        agreement(make_agreement(devices, in_flight, memory, capture.graphs(), losses.meet())),
        devices_(devices),
        gradients_(devices, optimizer, options.zero_grad_set_to_none) {}

  void accept(const Batch& batch, const LossFunction* borrowed, LossFunction own);
  /// The same for a player, whose batch and loss outlive the step.
  /// @param shared tensors of the players by replica, which outlive it too; or null
  void accept_kept(const Batch& batch, const LossFunction& loss, const std::vector<Shared>* shared);
  StepMetrics finish();
  void set_step(int64_t step);
  /// Precedes shared tensors: a skipped step restores the buffers from before them.
  void begin_shared();
  /// Freezes or thaws the groups with ParamGroup::trainable_from before the next step.
  void follow_step() const { gradients_.follow_step(step_); }
  /// Follows the steps in which this player did not take part.
  void skip_to(int64_t step) { step_ = step; }
  StepTimes times() const;

  void begin() override;
  void compute() override;
  void undo() override;

  const TrainStepOptions options;
  MemoryRecovery memory;
  LossWeights weights;
  WeightUpdate update;
  ReplicaLosses losses;
  MetricSums sums;
  StepBatches batches;
  StepCapture capture;
  StepsInFlight in_flight;
  std::unique_ptr<Agreement> agreement;

 private:
  /// A micro-batch that failed on this rank while the others continue, see Note [Votes of a step].
  struct DeferredFailure {
    std::string reason;
    bool again;  // the step can be retried
    std::exception_ptr exception;
  };
  /// What the current attempt of the step has done.
  struct Attempt {
    bool reduced = false;  // the gradients, in the last micro-batch
    std::optional<DeferredFailure> deferred = std::nullopt;
  };

  void begin_batches();
  void run_accepted();
  void run_pending_batches();
  bool run_batch(int64_t i);
  bool run_part(const StepBatches::Part& part, const LossFunction& loss);
  bool end_failed_part(const Batch& batch, bool is_last, bool reduced);
  bool end_failed_attempt(const std::string& reason, bool again, bool reduced);
  bool end_deferred_attempt();
  bool settle();
  void retry();
  void abandon(bool for_good);
  void clear_attempt();
  bool reduces_every_run() const { return devices_.shards() && devices_.shards()->reduction().reduces_every_run(); }

  ReplicaStrategy& devices_;
  StepGradients gradients_;
  std::unique_ptr<StepSnapshot> snapshot_;  // made by the first step
  Attempt attempt_;
  int64_t step_ = 0;
};

}  // namespace trainkit::detail
