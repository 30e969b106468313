#pragma once
// Agreement of the ranks on a step: whether all of them have succeeded, and what they have been asked for.

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "distributed/agreement/step_consensus.h"
#include "distributed/replicas/replica_strategy.h"
#include "trainkit/optim/optimizer.h"
#include "trainkit/train/step_metrics.h"

namespace trainkit::detail {

class MemoryRecovery;
class StepGraphs;
class StepsInFlight;

// Note [Votes of a step]
// ~~~~~~~~~~~~~~~~~~~~~~
// No rank may leave a step alone: the others would wait in their next collective until the timeout. Every rank sends
// exactly one vote per attempt (failed, out_of_memory, stop, save, weight, reason) and receives the combined verdict
// before the update. The vote may leave early, together with the last gradients, from the callback of
// DeviceReplicator::run(). Hence:
// - A rank that fails before it voted calls skip_reduction() if the gradients have not been reduced, so that the
//   others' all-reduce completes, then votes.
// - A rank that fails after it voted success cannot take that back. It waits for the verdict and leaves the process
//   group with its reason; the others notice at the latest in their next exchange.
// - With Sharding::kGradients the ranks meet in every micro-batch. A rank that fails in one takes part in the others
//   without rows, and votes after the last one: all ranks then agree on the number of reductions.
// - If the verdict is to retry, requests to stop or save of the abandoned attempt are repeated in the next vote.

/// The only place that knows votes. One rank alone, ranks whose hosts agree, and ranks whose devices agree are three
/// implementations. Used by the thread of the step, except for send(). Steps are counted from 1.
class Agreement {
 public:
  enum class Outcome {
    kUpdate,  ///< all ranks have succeeded
    kRetry,   ///< all ranks run the step again
    kFailed   ///< throw_failure() names the rank
  };

  /// An attempt of this rank that failed.
  struct Failure {
    std::string reason;
    bool again = false;    ///< the step can be retried
    bool reduced = false;  ///< this rank has taken part in the reduction of the gradients
    double weight = 0;     ///< of the micro-batches before
    int64_t runs = 1;      ///< micro-batches of a whole step
    /// Takes part in the collectives of an update that is skipped (`blocked` is 1 on the device).
    c10::function_ref<void(const at::Tensor& blocked)> skipped_update;
  };

  explicit Agreement(StepsInFlight& in_flight) : in_flight_(in_flight) {}
  virtual ~Agreement() = default;
  Agreement(const Agreement&) = delete;
  Agreement& operator=(const Agreement&) = delete;

  /// Asks all ranks to stop, or to save, after the next step.
  void request_stop(int signal);
  void request_save() { vote_.save = true; }
  /// Result of the last step: what the ranks have agreed on.
  const StepVerdict& verdict() const { return verdict_; }

  /// Begins a step: waits until the devices have finished the step before the last one. Throws the Error of a rank that
  /// failed in it.
  virtual void begin_step();
  /// Returns whether this rank can still ask the others for another attempt, or make one alone.
  virtual bool can_retry() const { return true; }
  /// Returns whether the next attempt of a step is split into smaller parts. `freed`: this rank has freed memory.
  virtual bool splits_retry(bool freed) { return !freed; }
  /// Returns whether the gradients of the micro-batches are reduced at the end of the step, by reduce().
  virtual bool reduces_later() const { return false; }
  virtual void reduce() {}
  /// Sends the vote of a step that succeeds, while its gradients are being reduced; called by the thread of backward.
  virtual void send(int64_t step, double weight) = 0;
  /// Handles a failure of this rank: takes part in the exchanges that the other ranks wait for. Returns whether all
  /// ranks retry the step. Throws nothing: the caller reports the failure.
  virtual bool fail(int64_t step, const Failure& failure) = 0;
  /// Exchanges the votes at the end of a step of this `weight`, of `expected` on all ranks. May wait for the others.
  virtual Outcome settle(int64_t step, double weight, double expected) = 0;
  /// Throws the Error of the rank that failed, according to the verdict.
  [[noreturn]] void throw_failure(int64_t step) const;

  /// Returns whether the ranks know that nothing counts in the step, so that it has no update.
  virtual bool nothing_counts() const { return verdict_.weight == 0; }
  /// Multiplies the gradients of all optimizers in place by expected weight / weight of all ranks. See Note [Weights of
  /// losses].
  virtual void correct(const std::vector<Optimizer*>& optimizers, double expected, MemoryRecovery& memory) const;

  /// Ends a step: sets world_weight, and completes the verdict by what is known of earlier steps.
  virtual void end_step(StepMetrics& metrics) { metrics.world_weight = verdict_.weight; }
  /// Waits until the steps so far are known to have succeeded on all ranks; throws the Error of one that failed.
  virtual void confirm() {}
  /// Leaves the steps so far behind, with their requests, when training continues elsewhere. Throws as confirm().
  virtual void leave_steps() {}
  /// Seconds in which the hosts waited for each other. Any thread may call it.
  virtual double seconds() const { return 0; }

  // ---- Captured steps.

  /// Who agrees on the next step.
  enum class By {
    kSelf,    ///< one rank; its steps can be captured and replayed
    kHosts,   ///< hosts that wait for one another; steps cannot be captured yet
    kDevices  ///< devices; steps can be captured and replayed
  };
  virtual By by() const { return By::kSelf; }
  /// What the devices have agreed on, scalars; undefined if only hosts agree.
  struct OnDevices {
    at::Tensor blocked;  ///< float32: 1 if the update must be skipped since a rank has failed, else 0
    at::Tensor weight;   ///< float64, of all ranks
  };
  virtual OnDevices on_devices() const { return {}; }
  /// Between these two a capture runs the host's side of a step. The vote is then as before, since a replay votes
  /// again.
  virtual void begin_capture() { vote_before_ = vote_; }
  virtual void end_capture();
  /// Votes for a step that a graph runs next.
  virtual void vote_for_replay(int64_t step, double weight) { send(step, weight); }

 protected:
  /// Repeats the requests of an abandoned attempt in the next vote.
  void repeat_requests();

  StepsInFlight& in_flight_;
  StepVote vote_;
  StepVerdict verdict_;

 private:
  std::optional<StepVote> vote_before_;  // begin_capture()
};

/// Returns the error of a step that failed on another rank.
absl::Status failed_elsewhere(const StepVerdict& verdict, int64_t step);

/// Creates the agreement of the ranks of `devices`. `graphs`: null if no step can be captured; they outlive it.
std::unique_ptr<Agreement> make_agreement(ReplicaStrategy& devices, StepsInFlight& in_flight, MemoryRecovery& memory,
                                          StepGraphs* graphs, bool replicas_meet);

}  // namespace trainkit::detail
