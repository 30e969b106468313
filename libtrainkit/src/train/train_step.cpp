#include "trainkit/train/train_step.h"

#include <ATen/ops/_foreach_mul.h>
#include <c10/core/GradMode.h>

#include "trainkit/amp/autocast.h"
#include "trainkit/optim/clip_grad.h"

namespace trainkit {
namespace {

GradScalerOptions scaler_options(const TrainStepOptions& options) {
  GradScalerOptions scaler = options.scaler;
  scaler.enabled = options.precision == Precision::kFp16;
  return scaler;
}

}  // namespace

TrainStep::TrainStep(DeviceReplicator& devices, Optimizer& optimizer, const TrainStepOptions& options,
                     LRScheduler* scheduler)
    : devices_(devices),
      optimizer_(optimizer),
      scheduler_(scheduler),
      options_(options),
      scaler_(scaler_options(options)) {
  TORCH_CHECK_VALUE(options.grad_accum_steps >= 1, "grad_accum_steps must be >= 1, got ", options.grad_accum_steps);
  TORCH_CHECK_VALUE(options.grad_clip >= 0, "grad_clip must be >= 0, got ", options.grad_clip);
  TORCH_CHECK_VALUE(options.precision != Precision::kFp16 || !devices.device().is_cpu(),
                    "precision fp16 needs a GPU; use bf16 on the CPU");
  if (optimizer.param_groups().empty()) {
    for (auto& group : default_param_groups(*devices.module())) optimizer.add_param_group(std::move(group));
  }
}

void TrainStep::accumulate(const Batch& batch, const LossFunction& loss) try {
  double weight = 0;
  devices_.run(
      [&](int64_t replica) {
        const at::Device device = devices_.device(replica);
        LossOutput output = [&] {
          if (options_.precision == Precision::kFp32) return loss(*devices_.module(replica), batch);
          AutocastGuard autocast(device, options_.precision == Precision::kBf16 ? at::kBFloat16 : at::kHalf);
          return loss(*devices_.module(replica), batch);
        }();
        weight = output.weight > 0 ? output.weight : static_cast<double>(batch.size());
        if (accumulated_ == 0) expected_weight_ = weight * static_cast<double>(options_.grad_accum_steps);
        const double share = weight / expected_weight_;
        at::Tensor scaled = share == 1.0 ? output.loss : output.loss * share;
        scaler_.scale(scaled).backward();
        add_metrics(output, share);
      },
      accumulated_ + 1 == options_.grad_accum_steps);
  ++accumulated_;
  weight_ += weight;
} catch (...) {
  optimizer_.zero_grad(true);
  accumulated_ = 0;
  weight_ = 0;
  throw;
}

void TrainStep::add_metrics(const LossOutput& output, double share) {
  if (share == 1.0) {
    metrics_.loss = output.loss.tensor_data();  // as detach(), without the dispatcher
    metrics_.metrics = output.metrics;
    for (auto& [name, value] : metrics_.metrics) value = value.tensor_data();
    return;
  }
  const c10::AutoGradMode no_grad(false);
  const bool first = accumulated_ == 0;
  if (first) metrics_.metrics.clear();
  metrics_.loss = first ? output.loss.detach() * share : metrics_.loss.add_(output.loss.detach(), share);
  for (size_t i = 0; i < output.metrics.size(); ++i) {
    const auto& [name, value] = output.metrics[i];
    if (first) {
      metrics_.metrics.emplace_back(name, value.detach() * share);
    } else {
      TORCH_CHECK(i < metrics_.metrics.size() && metrics_.metrics[i].first == name, "metric '", name,
                  "' is not returned for every micro-batch of a step");
      metrics_.metrics[i].second.add_(value.detach(), share);
    }
  }
}

StepMetrics TrainStep::finish() {
  TORCH_CHECK(accumulated_ > 0, "finish() needs at least one accumulate() before it");
  // Fewer micro-batches than planned, or of another weight than the first: the shares do not add up to 1 yet.
  const double correction = expected_weight_ / weight_;
  if (correction != 1.0) {
    const c10::AutoGradMode no_grad(false);
    std::vector<at::Tensor> gradients;
    for (const ParamGroup& group : optimizer_.param_groups()) {
      for (const NamedParameter& parameter : group.params) {
        if (parameter.tensor.grad().defined()) gradients.push_back(parameter.tensor.grad());
      }
    }
    at::_foreach_mul_(gradients, correction);
    metrics_.loss = metrics_.loss * correction;
    for (auto& [name, value] : metrics_.metrics) value = value * correction;
  }
  if (options_.grad_clip > 0) {
    scaler_.unscale_(optimizer_);
    metrics_.grad_norm = clip_grad_norm_(optimizer_, options_.grad_clip);
  }
  scaler_.step(optimizer_);
  scaler_.update();
  if (scheduler_) scheduler_->step();
  optimizer_.zero_grad(options_.zero_grad_set_to_none);
  metrics_.weight = weight_;
  accumulated_ = 0;
  weight_ = 0;
  return std::move(metrics_);
}

}  // namespace trainkit
