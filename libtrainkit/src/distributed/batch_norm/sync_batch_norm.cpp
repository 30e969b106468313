#include "trainkit/distributed/sync_batch_norm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/var_mean.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/batchnorm.h>

#include <vector>

#include "distributed/batch_norm/batch_norm_hooks.h"
#include "distributed/batch_norm/batch_norm_kernel.h"

namespace trainkit {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Returns all dimensions except the channels.
std::vector<int64_t> reduced_dims(const at::Tensor& x) {
  std::vector<int64_t> dims{0};
  for (int64_t d = 2; d < x.dim(); ++d) dims.push_back(d);
  return dims;
}

/// Reshapes (C) to (1, C, 1, ...), to broadcast over `x`.
at::Tensor per_channel(const at::Tensor& values, const at::Tensor& x) {
  std::vector<int64_t> shape(static_cast<size_t>(x.dim()), 1);
  shape[1] = values.numel();
  return values.to(x.scalar_type()).view(shape);
}

/// Sums over all replicas, in forward and in backward: each replica's loss depends on the values of all.
struct SumOfAll : torch::autograd::Function<SumOfAll> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& values, ReplicaGroup* group, int64_t replica) {
    context->saved_data["group"] = reinterpret_cast<int64_t>(group);
    context->saved_data["replica"] = replica;
    at::Tensor sums = values.clone();
    group->all_reduce(replica, sums);
    return sums;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    auto* group = reinterpret_cast<ReplicaGroup*>(context->saved_data["group"].toInt());
    return {SumOfAll::apply(gradients[0], group, context->saved_data["replica"].toInt()), {}, {}};
  }
};

/// A replica's place in the sums of a layer.
struct Place {
  ReplicaGroup* group;
  int64_t replica;
  bool counts;                   // its rows are in the sums
  detail::RecordedNodes* nodes;  // of each sum that waits in backward; null: not recorded

  void record(const at::Tensor& output) const {
    if (nodes && output.requires_grad()) nodes->list.emplace_back(output.grad_fn());
  }
};

/// Returns the sums of `values` over all replicas. A replica that does not count adds zeros. With grad mode on, the
/// result is differentiable; else `values` may be overwritten.
at::Tensor sum_of_all(at::Tensor values, const Place& place) {
  if (!c10::GradMode::is_enabled()) {
    if (!place.counts) values.zero_();
    place.group->all_reduce(place.replica, values);
    return values;
  }
  // Not zero_(): this replica's graph must reach the sum, since the others wait for it in backward too.
  if (!place.counts) values = at::where(at::zeros_like(values, at::kBool), values, 0.0);
  at::Tensor sums = SumOfAll::apply(values, place.group, place.replica);
  place.record(sums);
  return sums;
}

/// Mean and variance of each channel over the rows of all replicas, and the number of values per channel.
struct Statistics {
  at::Tensor mean;
  at::Tensor var;  // biased
  at::Tensor count;
};

/// Computes the statistics with sums in float64, so that E[x^2] - E[x]^2 does not cancel.
Statistics statistics_of_all(const at::Tensor& x, const Place& place) {
  const int64_t channels = x.size(1);
  const int64_t count = x.numel() / channels;
  const auto type = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto [var, mean] = at::var_mean(x.to(type), reduced_dims(x), /*correction=*/0);
  const at::Tensor mean64 = mean.to(at::kDouble);
  at::Tensor sums = at::empty({2 * channels + 1}, mean64.options());
  sums.narrow(0, 0, channels).copy_(mean64 * count);
  sums.narrow(0, channels, channels).copy_((var.to(at::kDouble) + mean64 * mean64) * count);
  sums.narrow(0, 2 * channels, 1).fill_(static_cast<double>(count));
  sums = sum_of_all(sums, place);
  const at::Tensor total = sums.narrow(0, 2 * channels, 1), divisor = total.clamp_min(1);
  const at::Tensor mean_all = sums.narrow(0, 0, channels) / divisor;
  const at::Tensor var_all = (sums.narrow(0, channels, channels) / divisor - mean_all * mean_all).clamp_min_(0);
  return {mean_all.to(type), var_all.to(type), total};
}

struct SyncBatchNormFunction : torch::autograd::Function<SyncBatchNormFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& bias, const at::Tensor& mean, const at::Tensor& var,
                            const at::Tensor& count, double eps, const Place* place) {
    context->save_for_backward({x, weight, mean, var, count});
    context->saved_data["eps"] = eps;
    context->saved_data["group"] = reinterpret_cast<int64_t>(place->group);
    context->saved_data["replica"] = place->replica;
    context->saved_data["counts"] = place->counts;
    context->saved_data["nodes"] = reinterpret_cast<int64_t>(place->nodes);
    return std::get<0>(at::native_batch_norm(x, weight, bias, mean, var, /*training=*/false, 0, eps));
  }

  static Place place_of(AutogradContext* context) {
    auto& saved = context->saved_data;
    return {reinterpret_cast<ReplicaGroup*>(saved["group"].toInt()), saved["replica"].toInt(), saved["counts"].toBool(),
            reinterpret_cast<detail::RecordedNodes*>(saved["nodes"].toInt())};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    if (c10::GradMode::is_enabled()) return differentiable_backward(context, gradients[0]);
    const auto saved = context->get_saved_variables();
    const Place place = place_of(context);
    const at::Tensor &x = saved[0], &weight = saved[1], &mean = saved[2], &var = saved[3], &count = saved[4];
    const double eps = context->saved_data["eps"].toDouble();
    const at::Tensor dy = gradients[0].contiguous(x.suggest_memory_format());
    // With constant statistics this gives sum(dy (x - mean) / std) and sum(dy) over the local rows.
    const at::Tensor none = at::empty({0}, mean.options());  // CUDA requires defined tensors but does not read them
    const auto [unused, d_weight, d_bias] =
        at::native_batch_norm_backward(dy, x, weight, mean, var, none, none, /*train=*/false, eps, {false, true, true});
    const at::Tensor sums = sum_of_all(at::cat({d_weight, d_bias}).to(at::kDouble), place);
    if (!place.counts) {  // the statistics do not depend on x
      return {at::zeros_like(x), at::zeros_like(weight), at::zeros_like(weight), {}, {}, {}, {}, {}};
    }
    // dx = weight / std (dy - mean(dy) - (x - mean) / std mean(dy (x - mean) / std)), with means over all rows.
    const int64_t channels = x.size(1);
    const at::Tensor inverse_std = (var.to(at::kDouble) + eps).rsqrt();
    const at::Tensor scale = weight.to(at::kDouble) * inverse_std;
    const at::Tensor slope = -scale * inverse_std * sums.narrow(0, 0, channels) / count;
    const at::Tensor offset = -scale * sums.narrow(0, channels, channels) / count - slope * mean;
    at::Tensor dx = dy * per_channel(scale, x);
    dx.addcmul_(x, per_channel(slope, x)).add_(per_channel(offset, x));
    return {dx, d_weight, d_bias, {}, {}, {}, {}, {}};
  }

  /// The same for a second derivative (create_graph): in operations that autograd records, with statistics that depend
  /// on x.
  static variable_list differentiable_backward(AutogradContext* context, const at::Tensor& dy) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    const Place place = place_of(context);
    const int64_t channels = x.size(1);
    const Statistics all = statistics_of_all(x, place);
    const auto type = all.mean.scalar_type();
    const auto over = [&](const at::Tensor& values) { return per_channel(values.to(type), x.to(type)); };
    const at::Tensor inverse_std = (all.var.to(at::kDouble) + context->saved_data["eps"].toDouble()).rsqrt();
    const at::Tensor normal = (x.to(type) - over(all.mean)) * over(inverse_std), slope = dy.to(type);
    const at::Tensor d_weight = (slope * normal).sum(reduced_dims(x)), d_bias = slope.sum(reduced_dims(x));
    const at::Tensor means = sum_of_all(at::cat({d_weight, d_bias}).to(at::kDouble), place) / all.count.clamp_min(1);
    at::Tensor dx = (slope - over(means.narrow(0, channels, channels)) - normal * over(means.narrow(0, 0, channels))) *
                    over(weight * inverse_std);
    if (!place.counts) dx = dx * 0;
    const auto own = [&](const at::Tensor& gradient) {
      return (place.counts ? gradient : gradient * 0).to(weight.scalar_type());
    };
    return {dx.to(x.scalar_type()), own(d_weight), own(d_bias), {}, {}, {}, {}, {}};
  }
};

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(const SyncBatchNormOptions& options_) : options(options_) { reset(); }

void SyncBatchNormImpl::reset() {
  TORCH_CHECK_VALUE(options.num_features > 0, "num_features must be > 0, got ", options.num_features);
  weight = register_parameter("weight", at::ones({options.num_features}));
  bias = register_parameter("bias", at::zeros({options.num_features}));
  running_mean = register_buffer("running_mean", at::zeros({options.num_features}));
  running_var = register_buffer("running_var", at::ones({options.num_features}));
  num_batches_tracked = register_buffer("num_batches_tracked", at::zeros({}, at::kLong));
  nodes_ = nullptr;  // a clone has its own
}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) { return normalize(input, {}, /*relu=*/false); }

at::Tensor SyncBatchNormImpl::forward_relu(const at::Tensor& input, const at::Tensor& residual) {
  return normalize(input, residual, /*relu=*/true);
}

at::Tensor SyncBatchNormImpl::normalize(const at::Tensor& input, const at::Tensor& residual, bool relu) {
  TORCH_CHECK_VALUE(input.dim() >= 2 && input.size(1) == options.num_features, "SyncBatchNorm: expected (N, ",
                    options.num_features, ", ...), got ", input.sizes());
  const bool alone = !is_training() || !options.synchronize || !group_ || group_->size() == 1;
  if (is_training()) {
    TORCH_CHECK_VALUE(!alone || input.numel() != input.size(1),
                      "SyncBatchNorm: Expected more than 1 value per channel when training, got input size ",
                      input.sizes());
    const c10::AutoGradMode no_grad(false);
    num_batches_tracked.add_(1);
  }
  if (alone && is_training() && detail::has_fused_batch_norm(input, residual, weight, bias)) {
    return detail::fused_batch_norm(input, residual, weight, bias,
                                    {running_mean, running_var, options.momentum, options.eps}, relu);
  }
  at::Tensor y = alone ? at::batch_norm(input, weight, bias, running_mean, running_var, is_training(), options.momentum,
                                        options.eps, /*cudnn_enabled=*/true)
                       : over_all_replicas(input);
  if (residual.defined()) y = y.add_(residual);  // in place: batch_norm does not save its output for backward
  return relu ? y.relu_() : y;
}

at::Tensor SyncBatchNormImpl::over_all_replicas(const at::Tensor& input) {
  at::Tensor x = input.contiguous(input.suggest_memory_format());
  // The others wait in backward for each replica. One whose rows skip a trained branch before this frozen layer takes
  // part too.
  if (c10::GradMode::is_enabled() && !weight.requires_grad() && !bias.requires_grad()) {
    const bool needed = group_->any(replica_, x.requires_grad());
    if (needed && !x.requires_grad()) x = x.detach().requires_grad_();
  }
  const Place place{group_, replica_, counts_rows_, nodes_.get()};
  const Statistics all = [&] {
    const c10::AutoGradMode no_grad(false);
    Statistics statistics = statistics_of_all(x, place);
    const at::Tensor unbiased =
        statistics.var * (statistics.count / (statistics.count - 1).clamp_min_(1)).to(statistics.var.dtype());
    const at::Tensor has_rows = statistics.count.gt(0);  // else nothing counts, and the buffers stay
    const auto update = [&](at::Tensor& running, const at::Tensor& now) {
      running.lerp_(at::where(has_rows, now.to(running.scalar_type()), running), options.momentum);
    };
    update(running_mean, statistics.mean);
    update(running_var, unbiased);
    return statistics;
  }();
  at::Tensor y = SyncBatchNormFunction::apply(x, weight, bias, all.mean, all.var, all.count, options.eps, &place);
  place.record(y);
  return y;
}

int64_t synchronize_batch_norm(torch::nn::Module& module, bool synchronize) {
  int64_t found = 0;
  for (const auto& part : module.modules()) {
    TORCH_CHECK_VALUE(!part->as<torch::nn::BatchNorm1dImpl>() && !part->as<torch::nn::BatchNorm2dImpl>() &&
                          !part->as<torch::nn::BatchNorm3dImpl>(),
                      "a torch::nn::BatchNorm cannot be synchronised: build the model with SyncBatchNorm");
    if (auto* norm = part->as<SyncBatchNormImpl>()) {
      norm->options.synchronize = synchronize;
      ++found;
    }
  }
  return found;
}

}  // namespace trainkit
