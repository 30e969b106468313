#include "trainkit/amp/grad_scaler.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "amp/scaling_state.h"
#include "core/base/option_problems.h"
#include "core/tensors/tensor_lists.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

using Stage = detail::ScalingState::Stage;

detail::OptionProblems problems_of(const GradScalerOptions& options) {
  detail::OptionProblems problems;
  problems
      .require(options.growth_factor > 1 && std::isfinite(options.growth_factor), "growth_factor", "finite and > 1",
               options.growth_factor)
      .require(options.backoff_factor > 0 && options.backoff_factor < 1, "backoff_factor", "in (0, 1)",
               options.backoff_factor)
      .require(options.growth_interval >= 1, "growth_interval", ">= 1", options.growth_interval)
      .require(detail::finite_not_negative(options.min_scale), "min_scale", "finite and >= 0", options.min_scale)
      .require(options.max_scale >= options.min_scale, "max_scale", ">= min_scale", options.max_scale)
      .require(options.init_scale > 0 && std::isfinite(options.init_scale) && options.init_scale >= options.min_scale &&
                   options.init_scale <= options.max_scale,
               "init_scale", "finite, > 0 and between min_scale and max_scale", options.init_scale);
  return problems;
}

std::map<at::ScalarType, std::vector<at::Tensor>> by_dtype(std::vector<at::Tensor> gradients) {
  std::map<at::ScalarType, std::vector<at::Tensor>> groups;
  for (at::Tensor& gradient : gradients) {
    TORCH_CHECK_VALUE(gradient.scalar_type() != at::kHalf,
                      "GradScaler: attempting to unscale float16 gradients; keep the parameters in float32 and run the "
                      "forward under AutocastGuard");
    groups[gradient.scalar_type()].push_back(std::move(gradient));
  }
  return groups;
}

}  // namespace

// Note [Loss scaling without host reads]
//
// PyTorch's scaler reads found_inf on the host to decide whether to call optimizer.step(). This scaler never reads it:
//
//   scale()     multiplies the loss by scale_, a tensor on the device.
//   unscale_()  multiplies the gradients by 1 / scale_ and sets found_inf to 1 if one of them is not finite.
//   step()      calls step_unless(found_inf). The fused kernel reads found_inf and leaves everything unchanged if it
//               is 1, including the step count.
//   update()    adds the found_inf of all optimizers and moves scale_ and growth_tracker_ in one kernel.
//
// The host therefore does not know whether a step was applied. LRScheduler reads the step count on the device for the
// same reason, see Note [Learning-rate table].
//
// The order of calls is checked on the host with ScalingState::Stage: kReady, then kUnscaled after unscale_(), then
// kStepped after step(), and back to kReady in begin_iteration(). An optimizer refers to the iteration through a weak
// pointer, so it may outlive the scaler. ScalingState::taken_by remembers a function that clipped the gradients before
// the scaler was first used in this iteration; unscale_() then reports it.
//
// All tensors keep their memory from step to step: a CUDA graph that captured these calls reads the same addresses in
// each replay. Options are captured by value, so load_state_dict changes version().

GradScaler::GradScaler(GradScalerOptions options)
    : options_(options), iteration_(std::make_shared<detail::ScalerIteration>()) {
  const auto problems = options.enabled ? problems_of(options) : detail::OptionProblems();
  TORCH_CHECK_VALUE(problems.empty(), "GradScaler: ", problems.text());
}
GradScaler::GradScaler(GradScaler&&) noexcept = default;
GradScaler& GradScaler::operator=(GradScaler&&) noexcept = default;
GradScaler::~GradScaler() = default;

at::Tensor GradScaler::scale(const at::Tensor& loss) {
  if (!enabled()) return loss;
  if (!scale_.defined()) create_tensors(loss.device());
  iteration_->scaled = true;
  return loss.mul(scale_.to(loss.device(), scale_.scalar_type(), /*non_blocking=*/true));
}

/// What unscale() needs.
struct GradScaler::Unscaling {
  detail::ScalingState& state;
  std::map<at::ScalarType, std::vector<at::Tensor>> groups;
  at::Tensor found_inf, inverse_scale, one;
};

/// Checks the order of calls, and allocates everything before a gradient changes.
GradScaler::Unscaling GradScaler::prepare_unscaling(ScaledOptimizer& optimizer) {
  detail::ScalingState& state = state_of(optimizer, "unscale_");
  TORCH_CHECK(state.stage != Stage::kUnscaled,
              "GradScaler: unscale_() has already been called on this optimizer since the last update()");
  TORCH_CHECK(state.stage != Stage::kStepped, "GradScaler: unscale_() is called after step(): call update() first");
  TORCH_CHECK(!state.taken_by, "GradScaler: ", state.taken_by,
              " was called on scaled gradients: call scaler.unscale_(optimizer) before it");
  auto groups = by_dtype(optimizer.gradients());
  TORCH_CHECK(!groups.empty(), "GradScaler: no parameter of this optimizer has a gradient");
  const at::Device device = groups.begin()->second.front().device();
  const bool is_there = state.found_inf.defined() && state.found_inf.device() == device;
  const at::Tensor found_inf = is_there ? state.found_inf : at::empty({}, at::device(device).dtype(at::kFloat));
  return {.state = state,
          .groups = std::move(groups),
          .found_inf = found_inf,
          .inverse_scale = inverse_scale_.to(device, at::kFloat, /*non_blocking=*/true),
          .one = options_.min_scale < 1 ? one_.to(device) : at::Tensor()};
}

void GradScaler::unscale(const Unscaling& unscaling) const {
  at::Tensor found_inf = unscaling.found_inf;
  found_inf.zero_();
  for (const auto& [dtype, gradients] : unscaling.groups) {
    if (detail::has_list_kernels(gradients)) {
      detail::unscale_by_kernel(gradients, found_inf, unscaling.inverse_scale);
      continue;
    }
    at::_amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, unscaling.inverse_scale);
    // LibTorch's operation checks the gradients before it multiplies them. A factor of at most 1 keeps a finite
    // gradient finite. A larger one (a scale below 1) can overflow, so check again with factor 1.
    if (unscaling.one.defined()) at::_amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, unscaling.one);
  }
  unscaling.state.found_inf = found_inf;
  unscaling.state.stage = Stage::kUnscaled;
}

void GradScaler::unscale_(ScaledOptimizer& optimizer) { unscale_({&optimizer}); }

void GradScaler::unscale_(const std::vector<ScaledOptimizer*>& optimizers) {
  if (!enabled() || optimizers.empty()) return;
  const at::NoGradGuard no_grad;
  std::vector<Unscaling> unscalings;
  unscalings.reserve(optimizers.size());
  for (ScaledOptimizer* optimizer : optimizers) unscalings.push_back(prepare_unscaling(*optimizer));
  std::vector<at::Tensor> found_inf;
  for (const Unscaling& one : unscalings) {
    unscale(one);
    found_inf.push_back(one.found_inf);
  }
  const detail::SumOverShards& sum_over_shards = detail::ScalingState::of(*optimizers.front())->sum_over_shards;
  if (!sum_over_shards) return;
  sum_over_shards(found_inf);
  for (at::Tensor& found : found_inf) found.clamp_max_(1);
}

void GradScaler::step(ScaledOptimizer& optimizer) {
  if (!enabled()) return optimizer.step();
  detail::ScalingState& state = state_of(optimizer, "step");
  TORCH_CHECK(state.stage != Stage::kStepped,
              "GradScaler: step() has already been called on this optimizer since the last update()");
  if (state.stage == Stage::kReady) unscale_(optimizer);
  optimizer.step_unless(state.found_inf);
  state.stage = Stage::kStepped;
}

void GradScaler::update(std::optional<double> new_scale) {
  if (!enabled()) return;
  TORCH_CHECK(iteration_->scaled, "GradScaler: update() is called before scale()");
  for (const auto& state : used_) {
    TORCH_CHECK(state->stage == Stage::kStepped,
                "GradScaler: update() is called between unscale_() and step() of an optimizer");
  }
  const at::NoGradGuard no_grad;
  if (new_scale) {
    TORCH_CHECK_VALUE(std::isfinite(*new_scale) && *new_scale > 0, "GradScaler: new_scale must be finite and > 0, got ",
                      *new_scale);
    set_scale(*new_scale);
  } else {
    TORCH_CHECK(!used_.empty(), "GradScaler: update() is called before step()");
    at::Tensor found_inf = used_.front()->found_inf.to(scale_.device(), at::kFloat, /*non_blocking=*/true);
    for (size_t i = 1; i < used_.size(); ++i) {
      found_inf = found_inf.add(used_[i]->found_inf.to(scale_.device(), at::kFloat, /*non_blocking=*/true));
    }
    at::_amp_update_scale_(scale_, growth_tracker_, found_inf, options_.growth_factor, options_.backoff_factor,
                           options_.growth_interval);
    scale_.clamp_(options_.min_scale, options_.max_scale);
    scale_changed();
  }
  begin_iteration();
}

void GradScaler::abandon() { begin_iteration(); }

at::Tensor GradScaler::found_inf(const ScaledOptimizer& optimizer) const {
  const detail::ScalingState& state = *detail::ScalingState::of(optimizer);
  TORCH_CHECK(state.scaler.lock() == iteration_ && state.stage != Stage::kReady,
              "GradScaler: found_inf() is called before unscale_()");
  return state.found_inf;
}

at::Tensor GradScaler::get_scale() const {
  if (scale_.defined()) return scale_;
  return at::full({}, enabled() ? options_.init_scale : 1.0, at::kFloat);
}

StateDict GradScaler::state_dict() const {
  if (!enabled()) return {};
  const double scale = scale_.defined() ? scale_.item<double>() : options_.init_scale;
  const int64_t tracker = growth_tracker_.defined() ? growth_tracker_.item<int64_t>() : init_growth_tracker_;
  return {{"scale", scale},
          {"growth_factor", options_.growth_factor},
          {"backoff_factor", options_.backoff_factor},
          {"growth_interval", options_.growth_interval},
          {"_growth_tracker", tracker}};
}

absl::Status GradScaler::load_state_dict(const StateDict& state) {
  if (!enabled()) return absl::OkStatus();
  GradScalerOptions options = options_;
  TRAINKIT_ASSIGN_OR_RETURN(options.init_scale, get_state<double>(state, "scale"));
  TRAINKIT_ASSIGN_OR_RETURN(options.growth_factor, get_state<double>(state, "growth_factor"));
  TRAINKIT_ASSIGN_OR_RETURN(options.backoff_factor, get_state<double>(state, "backoff_factor"));
  TRAINKIT_ASSIGN_OR_RETURN(options.growth_interval, get_state<int64_t>(state, "growth_interval"));
  TRAINKIT_ASSIGN_OR_RETURN(const int64_t tracker, get_state<int64_t>(state, "_growth_tracker"));
  detail::OptionProblems problems = problems_of(options);
  problems.require(tracker >= 0 && tracker < std::max<int64_t>(options.growth_interval, 1), "_growth_tracker",
                   "in [0, growth_interval)", tracker);
  if (!problems.empty()) {
    return to_status({.exit_code = ExitCode::kWeights,
                      .id = "ckpt.state",
                      .field = "scaler",
                      .problem = "has values out of range: " + problems.text()},
                     absl::StatusCode::kInvalidArgument);
  }
  options_ = options;
  ++version_;
  init_growth_tracker_ = tracker;
  if (scale_.defined()) {
    const at::NoGradGuard no_grad;
    set_scale(options.init_scale);
    growth_tracker_.fill_(tracker);
  }
  begin_iteration();
  return absl::OkStatus();
}

/// Returns the optimizer's state and adds the optimizer to this iteration on first use.
detail::ScalingState& GradScaler::state_of(ScaledOptimizer& optimizer, const char* caller) {
  TORCH_CHECK(iteration_->scaled, "GradScaler: ", caller, "() is called before scale()");
  const std::shared_ptr<detail::ScalingState>& state = detail::ScalingState::of(optimizer);
  if (std::find(used_.begin(), used_.end(), state) == used_.end()) {
    state->stage = Stage::kReady;
    state->scaler = iteration_;
    used_.push_back(state);
  }
  return *state;
}

void GradScaler::create_tensors(at::Device device) {
  const auto float_options = at::device(device).dtype(at::kFloat);
  scale_ = at::full({}, options_.init_scale, float_options);
  growth_tracker_ = at::full({}, init_growth_tracker_, float_options.dtype(at::kInt));
  one_ = at::ones({}, float_options);
  inverse_scale_ = at::ones({}, float_options);
  inverse_scale_double_ = at::ones({}, float_options.dtype(at::kDouble));
  scale_changed();
}

void GradScaler::set_scale(double scale) {
  scale_.fill_(std::clamp(scale, options_.min_scale, options_.max_scale));
  scale_changed();
}

/// Computes 1 / scale in double, as PyTorch does: a float reciprocal is approximate on some devices.
void GradScaler::scale_changed() {
  inverse_scale_double_.copy_(scale_);
  inverse_scale_double_.reciprocal_();
  inverse_scale_.copy_(inverse_scale_double_);
}

void GradScaler::begin_iteration() {
  for (const auto& state : used_) {
    state->stage = Stage::kReady;
    state->taken_by = nullptr;
  }
  used_.clear();
  iteration_->scaled = false;
}

}  // namespace trainkit
