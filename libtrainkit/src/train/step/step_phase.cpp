#include "train/step/step_phase.h"

#include <torch/nn/module.h>

#include <functional>
#include <utility>

#include "core/machine/waiting_threads.h"
#include "distributed/shards/parameter_shards.h"
#include "train/losses/user_mistakes.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {

// Note [Retrying a step]
// ~~~~~~~~~~~~~~~~~~~~~~
// A step is a function of its kept batches and of their split, between begin() and the update. compute() runs it; a
// retry, a warm-up, a trace and a capture run it in other places. When forward or backward runs out of memory, the step
// is retried with smaller micro-batches. Its result must equal, bit for bit, that of a step which used them from the
// start. Hence everything that a step changes before its update is saved or kept:
// - begin() takes a StepSnapshot: default generators (dropout draws from them) and buffers (BatchNorm's statistics).
// - StepBatches keeps every batch of the step until finish(). The last one belongs to the caller until then. Earlier
//   ones are copied, because the loader reuses their memory. Copies on the host alternate between two places, since the
//   devices may still read those of the previous step.
// - abandon() drops gradients, metrics and the scaler's state of the step; retry() restores the snapshot and the unit
// of
//   the weights, doubles the split and runs all batches from the first one.
// All ranks retry or none does, see Note [Votes of a step]. A retry is impossible once this rank has voted that the
// step succeeded, or if the process group failed.

void StepPhase::accept(const Batch& batch, const LossFunction* borrowed, LossFunction own) {
  begin_batches();
  memory.run([&] { batches.keep(batch, in_flight.place()); });
  batches.add(borrowed, std::move(own));
  run_accepted();
}

void StepPhase::accept_kept(const Batch& batch, const LossFunction& loss, const std::vector<Shared>* shared) {
  begin_batches();
  batches.keep_reference(batch);
  batches.add(&loss, nullptr, shared);
  run_accepted();
}

/// Begins the step with its first batch.
void StepPhase::begin_batches() {
  in_flight.note(step_ + 1);
  if (batches.count() > 0) return;
  if (batches.is_new()) let_waiting_threads_sleep();  // the first step
  batches.note_split();
  capture.begin_step();
  agreement->begin_step();
  follow_step();
  devices_.begin_step();
  if (update.copies().follow()) capture.forget();
  gradients_.begin();
}

void StepPhase::run_accepted() {
  if (capture.is_active()) return;
  const StepGradients::SetAside others(gradients_);
  run_pending_batches();
}

StepMetrics StepPhase::finish() {
  TORCH_CHECK(batches.count() > 0, "finish() needs at least one accumulate() before it");
  try {
    const StepGradients::SetAside others(gradients_);
    capture.is_active() ? capture.run(*this, *agreement, step_ + 1) : compute();
  } catch (...) {
    if (batches.count() > 0) {  // the update failed: its gradients must not enter the next step
      update.drop();
      clear_attempt();
      batches.clear();
    }
    throw;
  }
  StepMetrics metrics = sums.take(weights);
  const bool retried_alone = agreement->by() == Agreement::By::kDevices;
  if (retried_alone) batches.restore_split();  // the other ranks do not know of it
  agreement->end_step(metrics);
  batches.note_rows(metrics);
  batches.clear();
  clear_attempt();
  ++step_;
  in_flight.end();
  return metrics;
}

void StepPhase::set_step(int64_t step) {
  agreement->leave_steps();
  step_ = step;
}

StepTimes StepPhase::times() const {
  return {.copy_seconds = losses.copy_seconds(),
          .reduce_seconds = agreement->seconds() + devices_.reduce_seconds(),
          .update_seconds = update.seconds()};
}

void StepPhase::begin() try {
  if (capture.is_capturing()) return snapshot_->take_buffers();  // each replay advances the generators
  memory.run([&] {
    if (!snapshot_) snapshot_ = std::make_unique<StepSnapshot>(devices_);
    snapshot_->take();
  });
  weights.begin();
} catch (...) {
  if (!capture.is_capturing()) batches.clear();
  throw;
}

void StepPhase::begin_shared() {
  memory.run([&] {
    if (!snapshot_) snapshot_ = std::make_unique<StepSnapshot>(devices_);
    snapshot_->take_for_skip();
  });
}

void StepPhase::compute() {
  run_pending_batches();
  while (!settle()) retry();
  if (weights.sum() > 0 && !devices_.shards() && !gradients_.any()) throw_without_gradient(step_ + 1);
  update.run(*agreement, weights, sums, *snapshot_);
  gradients_.end();
}

void StepPhase::undo() {
  snapshot_->restore();
  abandon(/*for_good=*/false);
  batches.restart();
}

/// Runs forward and backward of the batches that have not been run yet.
void StepPhase::run_pending_batches() {
  if (batches.begun() == 0) begin();
  while (batches.begun() < batches.count()) {
    if (!run_batch(batches.begin_next())) retry();
  }
}

/// Runs the parts of a batch. Returns false if the step must be retried.
bool StepPhase::run_batch(int64_t i) {
  const KeptBatch& kept = batches.at(i);
  for (StepBatches::Part& part : batches.parts(i, /*keep_empty=*/reduces_every_run() || losses.meet())) {
    const bool is_missing = batches.split() > 1 && part.batch.size() == 0 && losses.meet();
    if (is_missing) part.batch = uncounted_row(kept.batch, devices_.device());
    if (!run_part(part, kept.loss())) return false;
  }
  return true;
}

/// Runs forward and backward of a micro-batch. Returns false if all ranks must retry the step.
bool StepPhase::run_part(const StepBatches::Part& kept, const LossFunction& loss) {
  if (ProcessGroup* group = devices_.process_group()) group->set_step(step_ + 1);
  const bool reduces = kept.is_last && !agreement->reduces_later();
  const ReplicaLosses::Part part{kept.batch, loss, batches.split(), step_ + 1, kept.shared};
  losses.begin(loss);
  const auto scaled_loss = [&](int64_t replica) {
    return attempt_.deferred ? at::Tensor() : losses.scaled_loss(replica, part);
  };
  try {
    const auto on_sent = [this] { agreement->send(step_ + 1, weights.sum() + losses.results()[0].weight); };
    devices_.run(std::ref(scaled_loss), reduces, on_sent);
  } catch (...) {
    if (capture.is_capturing()) throw;  // the device has not run anything yet
    return end_failed_part(kept.batch, kept.is_last, reduces);
  }
  if (attempt_.deferred) return kept.is_last ? end_deferred_attempt() : true;
  sums.add(losses.results(), capture.state_of_model());
  for (const ReplicaResult& result : losses.results()) weights.add(result.weight);
  weights.set_unit(losses.results()[0].unit);
  losses.clear();
  attempt_.reduced = reduces;
  return true;
}

/// Handles the current exception, of a micro-batch. Returns false if all ranks retry the step, and true if this rank
/// continues without rows; else throws.
bool StepPhase::end_failed_part(const Batch& batch, bool is_last, bool reduced) {
  const absl::Status error = status_from_current_exception();
  const bool again = absl::IsResourceExhausted(error) && agreement->can_retry() &&
                     memory.prepare_retry(batches.can_split() && batch.size() > devices_.replicas());
  const ProcessGroup* group = devices_.process_group();
  if (is_last || !reduces_every_run() || !group || !group->usable()) {
    return end_failed_attempt(std::string(error.message()), again, reduced);
  }
  // See Note [Votes of a step].
  attempt_.deferred.emplace(DeferredFailure{std::string(error.message()), again, std::current_exception()});
  attempt_.reduced = false;
  return true;
}

/// Handles the current exception. Returns false if all ranks retry the step, else throws.
bool StepPhase::end_failed_attempt(const std::string& reason, bool again, bool reduced) {
  const auto skipped_update = [&](const at::Tensor& blocked) {
    if (update.scaler().enabled()) update.scaler().scale(blocked);
    update.run(*agreement, weights, sums, *snapshot_);
  };
  const bool retries = agreement->fail(step_ + 1, {.reason = reason,
                                                   .again = again,
                                                   .reduced = reduced,
                                                   .weight = weights.sum(),
                                                   .runs = options.grad_accum_steps * batches.split(),
                                                   .skipped_update = skipped_update});
  abandon(/*for_good=*/!retries);
  if (retries) return false;
  if (again && !agreement->verdict().ok()) agreement->throw_failure(step_ + 1);
  throw;
}

/// Votes for a micro-batch that failed earlier in this step. Returns false if all ranks retry the step, else throws.
bool StepPhase::end_deferred_attempt() {
  const DeferredFailure failure = *std::exchange(attempt_.deferred, std::nullopt);
  try {
    std::rethrow_exception(failure.exception);
  } catch (...) {
    return end_failed_attempt(failure.reason, failure.again, /*reduced=*/true);
  }
}

/// Exchanges the gradients and votes of all ranks. Returns false if the step must be retried.
bool StepPhase::settle() {
  if (!attempt_.reduced && agreement->reduces_later()) {
    agreement->reduce();
  } else if (!attempt_.reduced) {
    devices_.run([](int64_t) { return at::Tensor(); });  // fewer micro-batches than planned
  }
  attempt_.reduced = true;
  if (attempt_.deferred) return end_deferred_attempt();
  sums.fill();
  const Agreement::Outcome outcome = agreement->settle(step_ + 1, weights.sum(), weights.expected());
  if (outcome == Agreement::Outcome::kUpdate) return true;
  const bool retries = outcome == Agreement::Outcome::kRetry;
  abandon(/*for_good=*/!retries);
  if (!retries) agreement->throw_failure(step_ + 1);
  memory.forget_freed();
  return false;
}

/// Retries the step from its start until it succeeds. See Note [Retrying a step].
void StepPhase::retry() {
  bool done = false;
  while (!done) {
    if (agreement->splits_retry(memory.has_freed())) batches.split_more();
    memory.empty_cache();
    snapshot_->restore();
    weights.restart();
    done = true;
    for (int64_t i = 0; done && i < batches.begun(); ++i) done = run_batch(i);
  }
}

/// Drops the accumulated gradients and metrics; also the batches if the step is not retried.
void StepPhase::abandon(bool for_good) {
  const bool to_none = options.zero_grad_set_to_none;  // else a parameter that had a gradient keeps one
  for (int64_t replica = 0; replica < devices_.replicas(); ++replica) devices_.module(replica)->zero_grad(to_none);
  update.drop();
  devices_.abandon_step();
  clear_attempt();
  if (for_good) batches.clear();
}

void StepPhase::clear_attempt() {
  losses.clear();
  sums.clear();
  weights.clear();
  attempt_ = {};
}

}  // namespace trainkit::detail
