#include "train/update/weight_update.h"

#include <ATen/ops/addcmul.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <chrono>
#include <cmath>

#include "core/machine/shapes_only.h"
#include "distributed/shards/parameter_shards.h"
#include "optim/clip_grad.h"
#include "optim/optimizer_parts.h"
#include "train/agreement/agreement.h"
#include "train/losses/loss_weights.h"
#include "train/losses/metric_sums.h"
#include "train/losses/nonfinite.h"
#include "train/retry/memory_recovery.h"
#include "train/retry/step_snapshot.h"

namespace trainkit::detail {
namespace {

/// Returns 1 if the norm is not finite, else 0, as float32: 0 times it is NaN or 0.
at::Tensor found_inf_of(const at::Tensor& norm) { return norm.mul(0).nan_to_num_(/*nan=*/1).to(at::kFloat); }

}  // namespace

GradScaler make_scaler(const TrainStepOptions& options) {
  GradScalerOptions scaler = options.scaler;
  scaler.enabled = options.precision == Precision::kFp16;
  return GradScaler(scaler);
}

WeightUpdate::WeightUpdate(ReplicaStrategy& devices, Optimizer& optimizer, const TrainStepOptions& options,
                           LRScheduler* scheduler, MemoryRecovery& memory, GradScaler* scaler)
    : devices_(devices),
      scheduler_(scheduler),
      memory_(memory),
      grad_clip_(options.grad_clip),
      to_none_(options.zero_grad_set_to_none),
      skips_nonfinite_(options.skip_nonfinite),
      own_scaler_(make_scaler(options)),
      scaler_(scaler ? *scaler : own_scaler_),
      copies_(devices, optimizer, options.ema_decay, memory) {}

void WeightUpdate::run(const Agreement& agreement, const LossWeights& weights, MetricSums& sums,
                       StepSnapshot& snapshot) {
  const c10::AutoGradMode no_grad(false);
  const auto start = std::chrono::steady_clock::now();
  agreement.nothing_counts() ? skip(sums) : update(agreement, weights, sums, snapshot);
  release_gradients();
  time_.add_since(start);
}

void WeightUpdate::update(const Agreement& agreement, const LossWeights& weights, MetricSums& sums,
                          StepSnapshot& snapshot) {
  // The estimated weight was wrong (fewer micro-batches, or other weights): correct it, see Note [Weights of losses].
  agreement.correct(copies_.all(), weights.expected(), memory_);
  if (weights.sum() > 0) sums.correct(weights);
  for (size_t i = 1; i < copies_.all().size(); ++i)
    OptimizerParts::of(*copies_.all()[i]).set_lr_from(OptimizerParts::of(copies_.first()));
  const bool skips = skips_nonfinite_ && !scaler_.enabled();
  const std::vector<at::Tensor> found_inf =
      skips ? update_unless_nonfinite(agreement, sums, snapshot) : update_optimizers(agreement, sums);
  if (devices_.shards()) devices_.gather_weights();  // begun by the optimizers
  copies_.update_averages(found_inf);
  if (scaler_.enabled()) count_skips(found_inf.front(), sums, snapshot);
  if (&scaler_ == &own_scaler_) {
    memory_.run([&] { scaler_.update(); });
  } else {
    has_used_scaler_ = true;
  }
  if (scheduler_) memory_.run([&] { scheduler_->step(); });
}

/// Clips and updates all copies of the weights. Returns the scaler's found_inf of each; undefined without a scaler.
std::vector<at::Tensor> WeightUpdate::update_optimizers(const Agreement& agreement, MetricSums& sums) {
  const std::vector<Optimizer*>& optimizers = copies_.all();
  const at::Tensor blocked = agreement.on_devices().blocked;
  if (scaler_.enabled()) memory_.run([&] { scaler_.unscale_({optimizers.begin(), optimizers.end()}); });
  read_gradients();
  if (grad_clip_ > 0) {
    memory_.run([&] { sums.metrics().grad_norm = clip_grad_norms_(optimizers, grad_clip_).front(); });
  }
  std::vector<at::Tensor> found_inf;
  for (Optimizer* optimizer : optimizers) {
    at::Tensor& found = found_inf.emplace_back();
    if (scaler_.enabled()) found = scaler_.found_inf(*optimizer);
    if (blocked.defined() && scaler_.enabled()) at::maximum_out(found, found, blocked);
    if (blocked.defined() && !scaler_.enabled()) {
      found = blocked;
      memory_.run([&] { optimizer->step_unless(found); });
    } else {
      memory_.run([&] { scaler_.step(*optimizer); });
    }
  }
  return found_inf;
}

/// Clips and updates all copies unless the norm of the gradients is not finite. A non-finite gradient makes the norm
/// non-finite too, so no separate pass is needed. Returns found_inf of each copy; undefined if the host knows that the
/// norm is finite.
std::vector<at::Tensor> WeightUpdate::update_unless_nonfinite(const Agreement& agreement, MetricSums& sums,
                                                              StepSnapshot& snapshot) {
  const std::vector<Optimizer*>& optimizers = copies_.all();
  const at::Tensor stopped = agreement.on_devices().blocked;
  std::vector<at::Tensor> norms, blocked(optimizers.size());
  read_gradients();
  memory_.run([&] { norms = clip_grad_norms_(optimizers, grad_clip_); });
  at::Tensor found_inf;  // of the first copy
  for (size_t i = 0; i < optimizers.size(); ++i) {
    const at::Tensor& norm = norms[i];
    if (!norm.is_cpu() || !std::isfinite(host_value(norm))) {  // reading a CPU tensor does not wait
      memory_.run([&] { blocked[i] = found_inf_of(norm); });
    }
    if (i == 0) found_inf = blocked[i];
    if (stopped.defined()) memory_.run([&] { blocked[i] = at::maximum(found_inf, stopped); });
    memory_.run([&] { blocked[i].defined() ? optimizers[i]->step_unless(blocked[i]) : optimizers[i]->step(); });
  }
  if (grad_clip_ > 0) sums.metrics().grad_norm = norms.front();
  count_skips(found_inf, sums, snapshot);
  return blocked;
}

/// Lets the caller read the gradients.
void WeightUpdate::read_gradients() {
  if (on_gradients_) on_gradients_();
}

/// Leaves weights, optimizer state, scale and schedule as they are in a step in which nothing counts.
void WeightUpdate::skip(MetricSums& sums) {
  StepMetrics& metrics = sums.metrics();
  if (grad_clip_ > 0) memory_.run([&] { metrics.grad_norm = at::zeros_like(metrics.loss); });
  scaler_.abandon();
}

/// Counts consecutive skips. `found_inf` is undefined if the host knows that all gradients are finite.
void WeightUpdate::count_skips(const at::Tensor& found_inf, MetricSums& sums, StepSnapshot& snapshot) {
  at::Tensor in_a_row, count;  // counted once, even if run() retries
  memory_.run([&] {
    if (!found_inf.defined()) {
      if (!none_skipped_.defined()) none_skipped_ = at::zeros({}, at::kFloat);
      in_a_row = none_skipped_;
    } else {
      const at::Tensor before = skipped_in_a_row_.defined() ? skipped_in_a_row_ : at::zeros_like(found_inf);
      in_a_row = at::addcmul(found_inf, before, found_inf);  // (before + 1) * found_inf
    }
    // A graph updates the tensor that it was captured with, so the count must stay in place.
    const bool in_place = keeps_count_ && !in_a_row.is_cpu();
    count = !in_place ? in_a_row : skipped_in_a_row_.defined() ? skipped_in_a_row_ : at::empty_like(in_a_row);
  });
  if (!count.is_same(in_a_row)) count.copy_(in_a_row);
  skipped_in_a_row_ = count;
  sums.metrics().skipped_in_a_row = in_a_row;
  if (!found_inf.defined() || !skips_nonfinite_) return;
  memory_.run([&] { snapshot.restore_buffers_if(found_inf); });
  if (!found_inf.is_cpu()) return;
  // Gradients are summed over the ranks: this one does not know whose loss is not finite.
  const bool is_own = sums.nonfinite().empty() && !devices_.process_group();
  sums.metrics().first_nonfinite = is_own ? nonfinite_gradient(*devices_.module()) : sums.nonfinite();
}

void WeightUpdate::release_gradients() {
  for (Optimizer* optimizer : copies_.all()) optimizer->zero_grad(to_none_);
  for (int64_t copy = 0; devices_.shards() && copy < devices_.weight_copies(); ++copy) {
    devices_.shards(copy)->reduction().release();
  }
}

void WeightUpdate::drop() {
  for (Optimizer* optimizer : copies_.all()) optimizer->zero_grad(to_none_);
  scaler_.abandon();
}

void WeightUpdate::count_on_device() {
  for (Optimizer* optimizer : copies_.all()) OptimizerParts::of(*optimizer).count_on_device();
  keeps_count_ = true;
}

void WeightUpdate::reserve_schedule() {
  if (scheduler_)
    memory_.run([&] { scheduler_->reserve(OptimizerParts::of(copies_.first()).counts.upper_bound() + 2); });
}

std::vector<int64_t> WeightUpdate::versions() const {
  std::vector<int64_t> versions = {scaler_.version(), scheduler_ ? scheduler_->reserved_steps() : 0};
  for (const Optimizer* optimizer : copies_.all()) versions.push_back(OptimizerParts::of(*optimizer).version);
  return versions;
}

void WeightUpdate::count_replayed_step() {
  for (Optimizer* optimizer : copies_.all()) OptimizerParts::of(*optimizer).counts.count_replayed();
}

}  // namespace trainkit::detail
