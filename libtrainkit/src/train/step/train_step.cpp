#include "trainkit/train/train_step.h"

#include <absl/status/statusor.h>
#include <torch/nn/module.h>

#include <exception>
#include <functional>
#include <optional>

#include "core/machine/waiting_threads.h"
#include "distributed/shards/parameter_shards.h"
#include "train/agreement/agreement.h"
#include "train/agreement/steps_in_flight.h"
#include "train/losses/loss_weights.h"
#include "train/losses/metric_sums.h"
#include "train/losses/replica_losses.h"
#include "train/losses/step_batches.h"
#include "train/losses/user_mistakes.h"
#include "train/retry/memory_recovery.h"
#include "train/retry/step_snapshot.h"
#include "train/step/step_capture.h"
#include "train/update/step_gradients.h"
#include "train/update/weight_update.h"
#include "trainkit/core/status.h"

namespace trainkit {

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

/// The loop of a step; its members do the work, each from what the ones before it have left.
class TrainStep::Impl final : public detail::CapturableStep {
 public:
  Impl(detail::ReplicaStrategy& devices, Optimizer& optimizer, const TrainStepOptions& options, LRScheduler* scheduler)
      : options(options),
        memory(devices.device(), options.release_memory),
        weights(devices, options.grad_accum_steps, memory),
        update(devices, optimizer, options, scheduler, memory),
        losses(devices, options, weights, update.scaler()),
        sums(devices, memory),
        batches(options.grad_accum_steps),
        capture(devices, options, {memory, batches, weights, sums, update}),
        in_flight(detail::devices_of(devices)),
        agreement(detail::make_agreement(devices, in_flight, memory, capture.graphs(), losses.meet())),
        devices_(devices),
        gradients_(devices, optimizer, options.zero_grad_set_to_none) {}

  void accept(const Batch& batch, const LossFunction* borrowed, LossFunction own);
  StepMetrics finish();
  void set_step(int64_t step);
  StepTimes times() const;

  void begin() override;
  void compute() override;
  void undo() override;

  const TrainStepOptions options;
  detail::MemoryRecovery memory;
  detail::LossWeights weights;
  detail::WeightUpdate update;
  detail::ReplicaLosses losses;
  detail::MetricSums sums;
  detail::StepBatches batches;
  detail::StepCapture capture;
  detail::StepsInFlight in_flight;
  std::unique_ptr<detail::Agreement> agreement;

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

  void run_pending_batches();
  bool run_batch(int64_t i);
  bool run_part(const Batch& batch, const LossFunction& loss, bool is_last);
  bool end_failed_part(const Batch& batch, bool is_last, bool reduced);
  bool end_failed_attempt(const std::string& reason, bool again, bool reduced);
  bool end_deferred_attempt();
  bool settle();
  void retry();
  void abandon(bool for_good);
  void clear_attempt();
  bool reduces_every_run() const { return devices_.shards() && devices_.shards()->reduction().reduces_every_run(); }

  detail::ReplicaStrategy& devices_;
  detail::StepGradients gradients_;
  std::unique_ptr<detail::StepSnapshot> snapshot_;  // made by the first step
  Attempt attempt_;
  int64_t step_ = 0;
};

void TrainStep::Impl::accept(const Batch& batch, const LossFunction* borrowed, LossFunction own) {
  in_flight.note(step_ + 1);
  if (batches.count() == 0) {
    if (batches.is_new()) detail::let_waiting_threads_sleep();  // the first step
    batches.note_split();
    capture.begin_step();
    agreement->begin_step();
    devices_.begin_step();
    if (update.copies().follow()) capture.forget();
    gradients_.begin();
  }
  memory.run([&] { batches.keep(batch, in_flight.place()); });
  batches.add(borrowed, std::move(own));
  if (capture.is_active()) return;
  const detail::StepGradients::SetAside others(gradients_);
  run_pending_batches();
}

StepMetrics TrainStep::Impl::finish() {
  TORCH_CHECK(batches.count() > 0, "finish() needs at least one accumulate() before it");
  try {
    const detail::StepGradients::SetAside others(gradients_);
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
  const bool retried_alone = agreement->by() == detail::Agreement::By::kDevices;
  if (retried_alone) batches.restore_split();  // the other ranks do not know of it
  agreement->end_step(metrics);
  batches.note_rows(metrics);
  batches.clear();
  clear_attempt();
  ++step_;
  in_flight.end();
  return metrics;
}

void TrainStep::Impl::set_step(int64_t step) {
  agreement->leave_steps();
  step_ = step;
}

StepTimes TrainStep::Impl::times() const {
  return {.copy_seconds = losses.copy_seconds(),
          .reduce_seconds = agreement->seconds() + devices_.reduce_seconds(),
          .update_seconds = update.seconds()};
}

void TrainStep::Impl::begin() try {
  if (capture.is_capturing()) return snapshot_->take_buffers();  // each replay advances the generators
  memory.run([&] {
    if (!snapshot_) snapshot_ = std::make_unique<detail::StepSnapshot>(devices_);
    snapshot_->take();
  });
  weights.begin();
} catch (...) {
  if (!capture.is_capturing()) batches.clear();
  throw;
}

void TrainStep::Impl::compute() {
  run_pending_batches();
  while (!settle()) retry();
  if (weights.sum() > 0 && !devices_.shards() && !gradients_.any()) detail::throw_without_gradient(step_ + 1);
  update.run(*agreement, weights, sums, *snapshot_);
  gradients_.end();
}

void TrainStep::Impl::undo() {
  snapshot_->restore();
  abandon(/*for_good=*/false);
  batches.restart();
}

/// Runs forward and backward of the batches that have not been run yet.
void TrainStep::Impl::run_pending_batches() {
  if (batches.begun() == 0) begin();
  while (batches.begun() < batches.count()) {
    if (!run_batch(batches.begin_next())) retry();
  }
}

/// Runs the parts of a batch. Returns false if the step must be retried.
bool TrainStep::Impl::run_batch(int64_t i) {
  const detail::KeptBatch& kept = batches.at(i);
  for (auto& [part, is_last] : batches.parts(i, /*keep_empty=*/reduces_every_run() || losses.meet())) {
    const bool is_missing = batches.split() > 1 && part.size() == 0 && losses.meet();
    if (is_missing) part = detail::uncounted_row(kept.batch, devices_.device());
    if (!run_part(part, kept.loss(), is_last)) return false;
  }
  return true;
}

/// Runs forward and backward of a micro-batch. Returns false if all ranks must retry the step.
bool TrainStep::Impl::run_part(const Batch& batch, const LossFunction& loss, bool is_last) {
  if (ProcessGroup* group = devices_.process_group()) group->set_step(step_ + 1);
  const bool reduces = is_last && !agreement->reduces_later();
  const detail::ReplicaLosses::Part part{batch, loss, batches.split(), step_ + 1};
  losses.begin(loss);
  const auto scaled_loss = [&](int64_t replica) {
    return attempt_.deferred ? at::Tensor() : losses.scaled_loss(replica, part);
  };
  try {
    const auto on_sent = [this] { agreement->send(step_ + 1, weights.sum() + losses.results()[0].weight); };
    devices_.run(std::ref(scaled_loss), reduces, on_sent);
  } catch (...) {
    if (capture.is_capturing()) throw;  // the device has not run anything yet
    return end_failed_part(batch, is_last, reduces);
  }
  if (attempt_.deferred) return is_last ? end_deferred_attempt() : true;
  sums.add(losses.results(), capture.state_of_model());
  for (const detail::ReplicaResult& result : losses.results()) weights.add(result.weight);
  weights.set_unit(losses.results()[0].unit);
  losses.clear();
  attempt_.reduced = reduces;
  return true;
}

/// Handles the current exception, of a micro-batch. Returns false if all ranks retry the step, and true if this rank
/// continues without rows; else throws.
bool TrainStep::Impl::end_failed_part(const Batch& batch, bool is_last, bool reduced) {
  const absl::Status error = status_from_current_exception();
  const bool again = absl::IsResourceExhausted(error) && agreement->can_retry() &&
                     memory.prepare_retry(/*can_split=*/batch.size() > devices_.replicas());
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
bool TrainStep::Impl::end_failed_attempt(const std::string& reason, bool again, bool reduced) {
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
bool TrainStep::Impl::end_deferred_attempt() {
  const DeferredFailure failure = *std::exchange(attempt_.deferred, std::nullopt);
  try {
    std::rethrow_exception(failure.exception);
  } catch (...) {
    return end_failed_attempt(failure.reason, failure.again, /*reduced=*/true);
  }
}

/// Exchanges the gradients and votes of all ranks. Returns false if the step must be retried.
bool TrainStep::Impl::settle() {
  if (!attempt_.reduced && agreement->reduces_later()) {
    agreement->reduce();
  } else if (!attempt_.reduced) {
    devices_.run([](int64_t) { return at::Tensor(); });  // fewer micro-batches than planned
  }
  attempt_.reduced = true;
  if (attempt_.deferred) return end_deferred_attempt();
  sums.fill();
  const detail::Agreement::Outcome outcome = agreement->settle(step_ + 1, weights.sum(), weights.expected());
  if (outcome == detail::Agreement::Outcome::kUpdate) return true;
  const bool retries = outcome == detail::Agreement::Outcome::kRetry;
  abandon(/*for_good=*/!retries);
  if (!retries) agreement->throw_failure(step_ + 1);
  memory.forget_freed();
  return false;
}

/// Retries the step from its start until it succeeds. See Note [Retrying a step].
void TrainStep::Impl::retry() {
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
void TrainStep::Impl::abandon(bool for_good) {
  const bool to_none = options.zero_grad_set_to_none;  // else a parameter that had a gradient keeps one
  for (int64_t replica = 0; replica < devices_.replicas(); ++replica) devices_.module(replica)->zero_grad(to_none);
  update.drop();
  devices_.abandon_step();
  clear_attempt();
  if (for_good) batches.clear();
}

void TrainStep::Impl::clear_attempt() {
  losses.clear();
  sums.clear();
  weights.clear();
  attempt_ = {};
}

namespace {

const TrainStepOptions& checked(const TrainStepOptions& options, const DeviceReplicator& devices) {
  TORCH_CHECK_VALUE(options.grad_accum_steps >= 1, "grad_accum_steps must be >= 1, got ", options.grad_accum_steps);
  TORCH_CHECK_VALUE(options.grad_clip >= 0, "grad_clip must be >= 0, got ", options.grad_clip);
  TORCH_CHECK_VALUE(options.ema_decay >= 0 && options.ema_decay < 1, "ema_decay must be in [0, 1), got ",
                    options.ema_decay);
  TORCH_CHECK_VALUE(options.precision != Precision::kFp16 || !devices.device().is_cpu(),
                    "precision fp16 needs a GPU; use bf16 on the CPU");
  return options;
}

}  // namespace

TrainStep::TrainStep(DeviceReplicator& devices, Optimizer& optimizer, const TrainStepOptions& options,
                     LRScheduler* scheduler)
    : impl_(std::make_unique<Impl>(detail::strategy_of(devices), optimizer, checked(options, devices), scheduler)) {}
TrainStep::~TrainStep() = default;

void TrainStep::accumulate(const Batch& batch, const LossFunction& loss) { impl_->accept(batch, &loss, nullptr); }
void TrainStep::accumulate(const Batch& batch, LossFunction&& loss) { impl_->accept(batch, nullptr, std::move(loss)); }
StepMetrics TrainStep::finish() { return impl_->finish(); }
void TrainStep::average_over_ranks(StepMetrics& metrics) { impl_->sums.average_over_ranks(metrics); }

void TrainStep::request_stop(int signal) { impl_->agreement->request_stop(signal); }
void TrainStep::request_save() { impl_->agreement->request_save(); }
int TrainStep::agreed_stop() const { return impl_->agreement->verdict().stop; }
bool TrainStep::agreed_save() const { return impl_->agreement->verdict().save; }
void TrainStep::confirm() { impl_->agreement->confirm(); }

void TrainStep::synchronize() { impl_->update.copies().synchronize(); }
NamedTensors TrainStep::averages(int64_t copy) const { return impl_->update.copies().averages(copy); }
const std::vector<Optimizer*>& TrainStep::optimizers() const { return impl_->update.copies().all(); }
void TrainStep::swap_averages() { impl_->update.copies().swap_averages(); }
GradScaler& TrainStep::scaler() { return impl_->update.scaler(); }
const GradScaler& TrainStep::scaler() const { return impl_->update.scaler(); }

void TrainStep::set_step(int64_t step) { impl_->set_step(step); }
double TrainStep::weight_unit() const { return impl_->weights.unit(); }
void TrainStep::set_weight_unit(double unit) { impl_->weights.set_unit(unit); }
int64_t TrainStep::split() const { return impl_->batches.split(); }
void TrainStep::set_split(int64_t split) { impl_->batches.set_split(split); }
int64_t TrainStep::accumulated() const { return impl_->batches.count(); }
const TrainStepOptions& TrainStep::options() const { return impl_->options; }

const std::string& TrainStep::graph_reason() const { return impl_->capture.reason(); }
bool TrainStep::uses_graphs() const { return impl_->capture.is_active(); }
int64_t TrainStep::graph_steps() const { return impl_->capture.graphs() ? impl_->capture.graphs()->steps() : 0; }
int64_t TrainStep::graph_captures() const { return impl_->capture.graphs() ? impl_->capture.graphs()->captures() : 0; }
bool TrainStep::drop_graphs(const std::string& reason) { return impl_->memory.drop_graphs(reason); }

StepTimes TrainStep::times() const { return impl_->times(); }

}  // namespace trainkit
