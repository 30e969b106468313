// Keeps the batches of a step and runs their forward and backward.
#include <ATen/ops/empty_like.h>
#include <absl/status/statusor.h>
#include <c10/core/GradMode.h>

#include <functional>

#include "core/device/device_error.h"
#include "core/machine/waiting_threads.h"
#include "distributed/shards/parameter_shards.h"
#include "train/graph/step_graphs.h"
#include "train/step/counted_rows.h"
#include "train/step/step_gradients.h"
#include "train/step/step_snapshot.h"
#include "train/step/steps_in_flight.h"
#include "train/step/train_step_parts.h"
#include "trainkit/amp/autocast.h"
#include "trainkit/core/status.h"

namespace trainkit {

/// Keeps a batch until finish(), see Note [Retrying a step]. Copies are page-locked if the batch is, since devices copy
/// from them asynchronously.
TrainStep::KeptBatch& TrainStep::keep(const Batch& batch) {
  const auto i = static_cast<size_t>(accumulated_);
  if (kept_.size() <= i) kept_.resize(i + 1);
  KeptBatch& kept = kept_[i];
  if (accumulated_ + 1 == options_.grad_accum_steps) {
    kept.batch = batch;
  } else {
    const c10::AutoGradMode no_grad(false);
    std::vector<at::Tensor> copies;
    for (size_t t = 0; t < batch.tensors().size(); ++t) {
      const at::Tensor& tensor = batch.tensors()[t];
      std::vector<at::Tensor>& memories = kept.memory[tensor.is_cpu() ? in_flight_->place() : 0];
      memories.resize(batch.tensors().size());
      at::Tensor& memory = memories[t];
      const bool fits = memory.defined() && memory.scalar_type() == tensor.scalar_type() &&
                        memory.device() == tensor.device() && memory.dim() == tensor.dim() &&
                        memory.sizes().slice(1) == tensor.sizes().slice(1) && memory.size(0) >= tensor.size(0) &&
                        memory.storage().use_count() == 1;  // else the loss function has kept its rows
      if (!fits) memory = at::empty_like(tensor, tensor.options().pinned_memory(tensor.is_pinned()));
      copies.push_back(memory.narrow(0, 0, tensor.size(0)));
      copies.back().copy_(tensor, /*non_blocking=*/tensor.is_cuda());
    }
    kept.batch = batch.with_tensors(std::move(copies));
  }
  return kept;
}

void TrainStep::accumulate(const Batch& batch, const LossFunction& loss) { accept(batch, &loss, nullptr); }
void TrainStep::accumulate(const Batch& batch, LossFunction&& loss) { accept(batch, nullptr, std::move(loss)); }

void TrainStep::accept(const Batch& batch, const LossFunction* borrowed, LossFunction own) {
  // A memory plan's steps on the CPU are not those in which a GPU fails.
  if (!devices_.device().is_cpu()) detail::note_step(device_names_, step_ + 1);
  if (accumulated_ == 0) {
    if (kept_.empty()) detail::let_waiting_threads_sleep();  // the first step
    wait_for_earlier_step();
    follow_model();
    gradients_->begin();
  }
  KeptBatch* kept = nullptr;
  with_memory([&] { kept = &keep(batch); });
  kept->borrowed_loss = borrowed;
  kept->own_loss = std::move(own);
  ++accumulated_;
  if (uses_graphs()) return;
  const detail::StepGradients::SetAside others(*gradients_);
  run_pending_batches();
}

/// Runs forward and backward of the batches that have not been run yet.
void TrainStep::run_pending_batches() {
  if (begun_ == 0) begin_step();
  while (begun_ < accumulated_) {
    const KeptBatch& kept = kept_[static_cast<size_t>(begun_++)];
    if (!run_batch(kept, begun_ == options_.grad_accum_steps)) retry_step();
  }
}

/// Runs a batch in split_ parts. Returns false if the step must be retried.
bool TrainStep::run_batch(const KeptBatch& kept, bool last) {
  if (split_ == 1) return run_part(kept.batch, kept.loss(), last);
  const int64_t rows = kept.batch.size();
  for (int64_t part = 0; part < split_; ++part) {
    Batch some = kept.batch.slice(rows * part / split_, rows * (part + 1) / split_);
    const bool last_part = last && part + 1 == split_;
    if (some.size() == 0 && !last_part && !meets_every_run()) continue;
    if (some.size() == 0 && collective_backward_) some = uncounted_row(kept.batch, devices_.device());
    if (!run_part(some, kept.loss(), last_part)) return false;
  }
  return true;
}

/// Runs forward and backward of a micro-batch. Returns false if all ranks must retry the step.
bool TrainStep::run_part(const Batch& batch, const LossFunction& loss, bool last) {
  const int64_t replicas = devices_.replicas();
  results_.resize(static_cast<size_t>(replicas));
  const std::vector<const LossFunction*> losses =
      replicas > 1 ? loss.for_replicas(replicas) : std::vector<const LossFunction*>();
  if (ProcessGroup* group = devices_.process_group()) group->set_step(step_ + 1);
  const auto scaled_loss = [&](int64_t replica) {
    if (deferred_) return at::Tensor();
    const auto i = static_cast<size_t>(replica);
    const Batch shard = shard_of(batch, replica);
    torch::nn::Module& module = *devices_.module(replica);
    const bool has_rows = shard.size() > shard.padding_rows();
    if (collective_backward_) begin_recording(module, has_rows);
    ReplicaResult& result = results_[i];
    result = run_replica(replica, shard, replicas > 1 ? *losses[i] : loss);
    if (!result.output || (result.share == 0 && !collective_backward_)) return at::Tensor();
    const at::Tensor& value = result.output->loss;
    at::Tensor scaled = result.share == 0     ? zero_loss(module, value, devices_.needs_all_gradients())
                        : result.share == 1.0 ? value
                                              : value * result.share;
    if (!scaler_.enabled() || !scaled.defined()) return scaled;
    const std::lock_guard lock(scaler_mutex_);
    return scaler_.scale(scaled);
  };
  try {
    const auto on_sent = [this] {
      if (!votes_on_device_) send_vote(weight_ + results_[0].weight);
    };
    devices_.run(std::ref(scaled_loss), last && !reduces_later(), on_sent);
  } catch (...) {
    if (capturing_) throw;  // the device has not run anything yet
    const absl::Status error = status_from_current_exception();
    const bool again = absl::IsResourceExhausted(error) && can_retry_step(batch);
    const ProcessGroup* group = devices_.process_group();
    if (!last && reduces_every_run() && group && group->usable()) {
      deferred_ = std::make_unique<DeferredFailure>(DeferredFailure{
          std::string(error.message()), again, std::current_exception()});  // see Note [Votes of a step]
      reduced_ = false;
      return true;
    }
    return end_failed_attempt(std::string(error.message()), again, /*reduced=*/last && !reduces_later());
  }
  if (deferred_) return last ? end_deferred_attempt() : true;
  with_memory([&] {
    StepMetrics sums = parts_ > 0 ? metrics_ : StepMetrics();
    for (const ReplicaResult& result : results_) {
      if (result.output) add_metrics(*result.output, result.weight, result.share, sums);
    }
    metrics_ = std::move(sums);
  });
  for (const ReplicaResult& result : results_) {
    weight_ += result.weight;
    if (nonfinite_.empty()) nonfinite_ = result.nonfinite;
  }
  weight_unit_ = results_[0].unit;
  results_.clear();
  reduced_ = last && !reduces_later();
  ++parts_;
  return true;
}

/// Handles the current exception. Returns false if all ranks retry the step, else throws.
bool TrainStep::end_failed_attempt(const std::string& reason, bool again, bool reduced) {
  if (fail(reason, again, reduced)) return false;
  if (again && !verdict_->ok()) throw absl::BadStatusOrAccess(detail::failed_elsewhere(*verdict_, step_ + 1));
  throw;
}

/// Votes for a micro-batch that failed earlier in this step. Returns false if all ranks retry the step, else throws.
bool TrainStep::end_deferred_attempt() {
  const DeferredFailure failure = *std::exchange(deferred_, nullptr);
  try {
    std::rethrow_exception(failure.exception);
  } catch (...) {
    return end_failed_attempt(failure.reason, failure.again, /*reduced=*/true);
  }
}

bool TrainStep::reduces_every_run() const { return shards_ && shards_->reduces_every_run(); }

/// Returns the rows of `replica` on its device; shares differ by one row at most. A replica without rows gets one that
/// does not count if the others wait for it in SyncBatchNorm.
Batch TrainStep::shard_of(const Batch& batch, int64_t replica) {
  const at::Device device = devices_.device(replica);
  const int64_t replicas = devices_.replicas();
  const bool has_rows = batch.size() * replica / replicas < batch.size() * (replica + 1) / replicas;
  if (!has_rows && collective_backward_) return uncounted_row(batch, device);
  if (device.is_cpu()) return batch.shard(replica, replicas, device);
  const detail::StepClock::time_point start = detail::StepClock::now();
  Batch shard = batch.shard(replica, replicas, device);
  if (replica == 0) detail::add_time(copy_time_, detail::StepClock::now() - start);  // the others copy concurrently
  return shard;
}

LossOutput TrainStep::forward(int64_t replica, const Batch& shard, const LossFunction& loss) {
  torch::nn::Module& module = *devices_.module(replica);
  if (options_.precision == Precision::kFp32) return loss(module, shard);
  const AutocastGuard autocast(devices_.device(replica),
                               options_.precision == Precision::kBf16 ? at::kBFloat16 : at::kHalf, /*enabled=*/true,
                               /*cache_enabled=*/devices_.replicas() == 1);
  return loss(module, shard);
}

void TrainStep::forget_batches() {
  for (KeptBatch& kept : kept_) {
    kept.batch = Batch();
    kept.borrowed_loss = nullptr;
    kept.own_loss = nullptr;
  }
  accumulated_ = begun_ = 0;
}

}  // namespace trainkit
