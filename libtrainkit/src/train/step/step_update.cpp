// Updates the weights at the end of a step.
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <map>

#include "core/tensors/recorded.h"
#include "distributed/agreement/device_votes.h"
#include "distributed/shards/parameter_shards.h"
#include "optim/clip_grad.h"
#include "train/graph/step_graphs.h"
#include "train/step/nonfinite.h"
#include "train/step/step_gradients.h"
#include "train/step/step_snapshot.h"
#include "train/step/train_step_parts.h"
#include "train/step/weight_average.h"
#include "trainkit/core/status.h"
#include "trainkit/optim/optimizer.h"

namespace trainkit {
namespace {

/// Multiplies `gradients` in place. On the CPU a scalar becomes a tensor in each operation, so it is converted once per
/// dtype. All factors are allocated before the first gradient changes, see Note [Stages of an update].
void scale(const std::vector<at::Tensor>& gradients, double factor) {
  if (gradients.empty()) return;
  if (!gradients.front().is_cpu()) return at::_foreach_mul_(gradients, factor);
  std::map<at::ScalarType, at::Tensor> factors;
  for (const at::Tensor& gradient : gradients) {
    at::Tensor& number = factors[gradient.scalar_type()];
    if (!number.defined()) number = at::full({}, factor, gradient.options());
  }
  for (const at::Tensor& gradient : gradients) at::Tensor(gradient).mul_(factors[gradient.scalar_type()]);
}

/// Returns 1 if the norm is not finite, else 0, as float32: 0 times it is NaN or 0.
at::Tensor found_inf_of(const at::Tensor& norm) { return norm.mul(0).nan_to_num_(/*nan=*/1).to(at::kFloat); }

}  // namespace

// Note [Stages of an update]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~
// An update that fails halfway would leave weights, optimizer state and schedule inconsistent, and a retry would apply
// a part of it twice. The update is therefore divided into stages, each run by with_memory(). A stage must allocate
// everything that it needs before it changes anything (compute into temporaries, then assign). Then an out-of-memory
// error means that the stage has had no effect and can be run again: first after emptying the device's cache, then
// after dropping graphs or release_memory().

/// Updates the weights from the summed gradients. Waits for no other rank, except with sharding. See Note [Stages of an
/// update].
void TrainStep::update() {
  const c10::AutoGradMode no_grad(false);
  // The estimated weight was wrong (fewer micro-batches, or other weights): correct it, see Note [Weights of losses].
  if (votes_on_device_) {
    const detail::ExchangeScope agreement;
    votes_->correct(optimizer_.gradients());
  } else if (verdict_->weight == 0) {
    return skip_update();
  } else if (const double correction = expected_weight_ / verdict_->weight; correction != 1.0) {
    for (Optimizer* optimizer : optimizers_) with_memory([&] { scale(optimizer->gradients(), correction); });
  }
  if (weight_ > 0) correct_metrics();
  for (size_t i = 1; i < optimizers_.size(); ++i) optimizers_[i]->set_lr_from(optimizer_);
  const bool skips = options_.skip_nonfinite && !scaler_.enabled();
  const std::vector<at::Tensor> found_inf = skips ? update_unless_nonfinite() : update_optimizers();
  if (shards_) devices_.gather_weights();  // begun by the optimizers
  for (size_t i = 0; i < averages_.size(); ++i) averages_[i].update(found_inf[i]);
  if (scaler_.enabled()) count_skips(found_inf.front());
  with_memory([&] { scaler_.update(); });
  if (scheduler_) with_memory([&] { scheduler_->step(); });
  release_gradients();
}

/// Clips and updates all copies of the weights. Returns the scaler's found_inf of each; undefined without a scaler.
std::vector<at::Tensor> TrainStep::update_optimizers() {
  if (scaler_.enabled()) with_memory([&] { scaler_.unscale_({optimizers_.begin(), optimizers_.end()}); });
  if (options_.grad_clip > 0) {
    with_memory([&] { metrics_.grad_norm = detail::clip_grad_norms_(optimizers_, options_.grad_clip).front(); });
  }
  std::vector<at::Tensor> found_inf;
  for (Optimizer* optimizer : optimizers_) {
    at::Tensor& found = found_inf.emplace_back();
    if (scaler_.enabled()) found = scaler_.found_inf(*optimizer);
    if (votes_ && scaler_.enabled()) at::maximum_out(found, found, votes_->blocked());
    if (votes_ && !scaler_.enabled()) {
      found = votes_->blocked();
      with_memory([&] { optimizer->step_unless(found); });
    } else {
      with_memory([&] { scaler_.step(*optimizer); });
    }
  }
  return found_inf;
}

void TrainStep::release_gradients() {
  for (Optimizer* optimizer : optimizers_) optimizer->zero_grad(options_.zero_grad_set_to_none);
  for (int64_t copy = 0; shards_ && copy < devices_.weight_copies(); ++copy) devices_.shards(copy)->release_gradients();
  gradients_->end();
}

/// Drops a step whose update failed. Its gradients must not enter the next one.
void TrainStep::drop_failed_update() {
  for (Optimizer* optimizer : optimizers_) optimizer->zero_grad(options_.zero_grad_set_to_none);
  scaler_.abandon();
  metrics_ = {};
  nonfinite_.clear();
  parts_ = 0;
  reduced_ = false;
  weight_ = 0;
  forget_batches();
}

/// Drops the gradients of a step in which nothing counts. Weights, optimizer state, scale and schedule stay.
void TrainStep::skip_update() {
  if (options_.grad_clip > 0) with_memory([&] { metrics_.grad_norm = at::zeros_like(metrics_.loss); });
  scaler_.abandon();
  release_gradients();
}

/// Clips and updates all copies unless the norm of the gradients is not finite. A non-finite gradient makes the norm
/// non-finite too, so no separate pass is needed. Returns found_inf of each copy; undefined if the host knows that the
/// norm is finite.
std::vector<at::Tensor> TrainStep::update_unless_nonfinite() {
  std::vector<at::Tensor> norms, blocked(optimizers_.size());
  with_memory([&] { norms = detail::clip_grad_norms_(optimizers_, options_.grad_clip); });
  at::Tensor found_inf;  // of the first copy
  for (size_t i = 0; i < optimizers_.size(); ++i) {
    const at::Tensor& norm = norms[i];
    if (!norm.is_cpu() || !std::isfinite(norm.item<double>())) {  // reading a CPU tensor does not wait
      with_memory([&] { blocked[i] = found_inf_of(norm); });
    }
    if (i == 0) found_inf = blocked[i];
    if (votes_) with_memory([&] { blocked[i] = at::maximum(found_inf, votes_->blocked()); });
    with_memory([&] { blocked[i].defined() ? optimizers_[i]->step_unless(blocked[i]) : optimizers_[i]->step(); });
  }
  if (options_.grad_clip > 0) metrics_.grad_norm = norms.front();
  count_skips(found_inf);
  return blocked;
}

/// Counts consecutive skips. `found_inf` is undefined if the host knows that all gradients are finite.
void TrainStep::count_skips(const at::Tensor& found_inf) {
  at::Tensor in_a_row, count;  // counted once, even if with_memory() retries
  with_memory([&] {
    if (!found_inf.defined()) {
      if (!none_skipped_.defined()) none_skipped_ = at::zeros({}, at::kFloat);
      in_a_row = none_skipped_;
    } else {
      const at::Tensor before = skipped_in_a_row_.defined() ? skipped_in_a_row_ : at::zeros_like(found_inf);
      in_a_row = at::addcmul(found_inf, before, found_inf);  // (before + 1) * found_inf
    }
    // A graph updates the tensor that it was captured with, so the count must stay in place.
    const bool in_place = graphs_ && !in_a_row.is_cpu();
    count = !in_place ? in_a_row : skipped_in_a_row_.defined() ? skipped_in_a_row_ : at::empty_like(in_a_row);
  });
  if (!count.is_same(in_a_row)) count.copy_(in_a_row);
  skipped_in_a_row_ = count;
  metrics_.skipped_in_a_row = in_a_row;
  if (!found_inf.defined() || !options_.skip_nonfinite) return;
  with_memory([&] { snapshot_->restore_buffers_if(found_inf); });
  if (!found_inf.is_cpu()) return;
  // Gradients are summed over the ranks: this one does not know whose loss is not finite.
  metrics_.first_nonfinite =
      nonfinite_.empty() && !agreement_ ? detail::nonfinite_gradient(*devices_.module()) : nonfinite_;
}

}  // namespace trainkit
