// Agrees with the other ranks on a step, and retries it with less memory.
#include <absl/status/statusor.h>

#include <algorithm>
#include <utility>

#include "core/tensors/recorded.h"
#include "distributed/agreement/device_votes.h"
#include "distributed/agreement/graph_ranks.h"
#include "train/graph/step_graphs.h"
#include "train/step/step_snapshot.h"
#include "train/step/train_step_parts.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit {

/// Reason for dropping graphs.
static constexpr const char* kNoMemory = "out of memory in a step that was not captured";

namespace detail {

absl::Status failed_elsewhere(const StepVerdict& verdict, int64_t step) {
  const std::string rank = "rank " + std::to_string(verdict.failed.front());
  return to_status(
      {.exit_code = ExitCode::kDistributed,
       .id = "dist.peer",
       .problem = rank + " failed at step " + std::to_string(step) + ": " + verdict.reason},
      verdict.out_of_memory.empty() ? absl::StatusCode::kUnavailable : absl::StatusCode::kResourceExhausted);
}

}  // namespace detail

// Note [Retrying a step]
// ~~~~~~~~~~~~~~~~~~~~~~
// When forward or backward runs out of memory, the step is retried with smaller micro-batches. Its result must equal,
// bit for bit, that of a step which used them from the start. Hence everything that a step changes before its
// update is saved or kept:
// - begin_step() takes a StepSnapshot: default generators (dropout draws from them) and buffers (BatchNorm's
//   statistics).
// - keep() keeps every batch of the step until finish(). The last one belongs to the caller until then. Earlier ones
//   are copied, because the loader reuses their memory. Copies on the host alternate between two places, since the
//   devices may still read those of the previous step.
// - abandon() drops gradients, metrics and the scaler's state of the step; retry_step() restores the snapshot and
//   weight_unit_, doubles split_ and runs all batches from the first one.
// All ranks retry or none does: micro-batches of a step share one scale, so ranks that split differently would weigh
// their rows differently. The rank that fails votes out_of_memory (see Note [Votes of a step]); the others learn it in
// settle(). A retry is impossible once this rank has voted that the step succeeded, or if the process group failed.
// Memory is freed in this order: captured graphs, then smaller micro-batches, then release_memory() with one row per
// replica.

void TrainStep::begin_step() try {
  if (capturing_) return snapshot_->take_buffers();  // each replay advances the generators
  with_memory([&] {
    if (!snapshot_) snapshot_ = std::make_unique<detail::StepSnapshot>(devices_);
    snapshot_->take();
  });
  unit_at_start_ = weight_unit_;
} catch (...) {
  if (!capturing_) forget_batches();
  throw;
}

/// After an out-of-memory error with `batch`: returns whether a retry may succeed, with smaller parts or with memory
/// that was freed. See Note [Retrying a step].
bool TrainStep::can_retry_step(const Batch& batch) {
  const ProcessGroup* group = devices_.process_group();
  if (group && (!group->usable() || agreement_->sent())) return false;
  if (votes_on_device_ && meets_every_run()) return false;  // the other ranks have received a part of it
  released_ = drop_graphs(kNoMemory);
  if (released_ || batch.size() > devices_.replicas()) return true;
  released_ = options_.release_memory && options_.release_memory();
  return released_;
}

/// Retries the step from its start until it succeeds. Every rank splits like the others, see Note [Retrying a step]; if
/// some may hold graphs, all drop them first.
void TrainStep::retry_step() {
  bool done = false;
  while (!done) {
    const bool together = agreement_ && !votes_on_device_;
    const bool dropped = together && std::exchange(holds_graphs_, false);
    if (dropped) drop_graphs(kNoMemory);
    if (together ? !dropped : !released_) split_ *= 2;
    empty_device_cache();
    snapshot_->restore();
    weight_unit_ = unit_at_start_;
    done = true;
    for (int64_t i = 0; done && i < begun_; ++i) {
      done = run_batch(kept_[static_cast<size_t>(i)], i + 1 == options_.grad_accum_steps);
    }
  }
}

/// Runs a stage of an update; if memory runs out, frees memory and runs it again. See Note [Stages of an update].
void TrainStep::with_memory(c10::function_ref<void()> stage) {
  for (int attempt = 0;; ++attempt) {
    try {
      return stage();
    } catch (const std::exception&) {
      if (capturing_ || attempt == 2 || !absl::IsResourceExhausted(status_from_current_exception())) throw;
    }
    const bool dropped = attempt == 1 && drop_graphs(kNoMemory);
    empty_device_cache();
    if (attempt == 1 && !dropped && options_.release_memory) options_.release_memory();
  }
}

// Note [Votes of a step]
// ~~~~~~~~~~~~~~~~~~~~~~
// No rank may leave a step alone: the others would wait in their next collective until the timeout. Every rank sends
// exactly one vote per attempt (failed, out_of_memory, stop, save, weight, reason) and receives the combined verdict
// before the update. The vote may leave early, together with the last gradients, from the callback of devices_.run().
// Hence:
// - A rank that fails before it voted calls skip_reduction() if the gradients have not been reduced, so that the
//   others' all-reduce completes, then votes.
// - A rank that fails after it voted success cannot take that back. It waits for the verdict and leaves the process
//   group with its reason; the others notice at the latest in their next exchange.
// - With Sharding::kGradients the ranks meet in every micro-batch. A rank that fails in one takes part in the others
//   without rows, and votes after the last one (deferred_): all ranks then agree on the number of reductions.
// - If the verdict is to retry, requests to stop or save of the abandoned attempt are repeated in the next vote
//   (repeat_requests).

/// Handles an exception of this rank: takes part in the exchanges that the other ranks wait for, and tells them whether
/// to retry the step. Returns whether all ranks retry it. See Note [Votes of a step].
bool TrainStep::fail(const std::string& reason, bool again, bool reduced) {
  *verdict_ = StepVerdict();
  if (votes_on_device_) {
    if (!again) take_part_as_failed(reason, reduced);
    abandon(/*for_good=*/!again);
    return again;
  }
  try {
    tell_others(reason, again, reduced);
  } catch (const std::exception&) {
    // The group has failed as well. The caller reports the first error.
  }
  const bool retry = again && (!agreement_ || verdict_->retry);
  if (retry) repeat_requests();
  abandon(/*for_good=*/!retry);
  return retry;
}

void TrainStep::tell_others(const std::string& reason, bool again, bool reduced) {
  ProcessGroup* group = devices_.process_group();
  if (!group || !group->usable()) return;
  if (agreement_->sent()) {
    // Too late to vote: the others continue until their next exchange, see Note [Votes of a step].
    receive_verdict();
    return group->leave(reason);
  }
  if (!reduced) devices_.skip_reduction();
  vote_->failed = !again;
  vote_->out_of_memory = again;
  send_vote(weight_, reason);
  receive_verdict();
}

/// Repeats the requests of the abandoned attempt in the next vote.
void TrainStep::repeat_requests() {
  vote_->stop = std::max(vote_->stop, verdict_->stop);
  vote_->save |= verdict_->save;
}

/// Drops the accumulated gradients and metrics; also the batches if the step is not retried.
void TrainStep::abandon(bool for_good) {
  const bool to_none = options_.zero_grad_set_to_none;  // else a parameter that had a gradient keeps one
  for (int64_t replica = 0; replica < devices_.replicas(); ++replica) devices_.module(replica)->zero_grad(to_none);
  optimizer_.zero_grad(to_none);
  devices_.abandon_step();
  scaler_.abandon();
  results_.clear();
  deferred_.reset();
  metrics_ = {};
  nonfinite_.clear();
  parts_ = 0;
  reduced_ = false;
  weight_ = 0;
  if (for_good) forget_batches();
}

void TrainStep::send_vote(double weight, const std::string& reason) {
  vote_->weight = weight;
  vote_->reason = reason;
  add_graphs_to_vote();
  if (agreement_) {
    agreement_->send(step_ + 1, *vote_);
  } else {
    *verdict_ = StepVerdict{.stop = vote_->stop, .save = vote_->save, .weight = vote_->weight};
  }
  *vote_ = StepVote();
}

void TrainStep::receive_verdict() {
  if (agreement_) *verdict_ = agreement_->wait().value();
}

/// Exchanges the gradients and votes of all ranks. Returns false if the step must be retried.
bool TrainStep::settle() {
  if (!reduced_ && reduces_later()) {
    graph_ranks_->reduce();
  } else if (!reduced_) {
    devices_.run([](int64_t) { return at::Tensor(); });  // fewer micro-batches than planned
  }
  reduced_ = true;
  if (deferred_) return end_deferred_attempt();
  if (!metrics_.loss.defined()) with_memory([&] { set_empty_metrics(); });
  if (votes_on_device_) {
    const detail::ExchangeScope agreement;
    if (!capturing_) cast_vote(weight_);
    votes_->sum(expected_weight_);
    return true;
  }
  if (!agreement_) {
    send_vote(weight_);
  } else {
    const detail::StepClock::time_point start = detail::StepClock::now();
    if (!agreement_->sent()) send_vote(weight_);
    receive_verdict();
    detail::add_time(agree_time_, detail::StepClock::now() - start);
  }
  if (verdict_->ok()) return true;
  abandon(/*for_good=*/!verdict_->retry);
  if (!verdict_->retry) throw absl::BadStatusOrAccess(detail::failed_elsewhere(*verdict_, step_ + 1));
  repeat_requests();
  released_ = false;
  return false;
}

}  // namespace trainkit
