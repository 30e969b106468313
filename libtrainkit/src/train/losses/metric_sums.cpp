#include "train/losses/metric_sums.h"

#include <ATen/ops/result_type.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "train/losses/loss_weights.h"
#include "train/losses/replica_losses.h"
#include "train/retry/memory_recovery.h"

namespace trainkit::detail {
namespace {

/// Returns whether `value`, one of the scalars of `output`, uses memory that somebody else holds: a parameter, a
/// buffer, a tensor of the caller. It may change before the metric is read.
bool is_shared(const at::Tensor& value, const LossOutput& output) {
  size_t tensors = 0;  // of the output with this memory
  bool is_held = false;
  const auto output_tensor = [&](size_t i) -> const at::Tensor& {
    return i == 0 ? output.loss : output.metrics[i - 1].second;
  };
  for (size_t i = 0; i <= output.metrics.size(); ++i) {
    const at::Tensor& other = output_tensor(i);
    if (!other.is_alias_of(value)) continue;
    size_t handles = 0, earlier = 0;
    for (size_t j = 0; j <= output.metrics.size(); ++j) {
      const bool is_same = output_tensor(j).is_same(other);
      handles += is_same;
      earlier += is_same && j < i;
    }
    is_held |= other.use_count() > handles;
    tensors += earlier == 0;
  }
  return is_held || value.storage().use_count() > tensors;
}

/// Returns the place of metric `name`, or the number of metrics. `guess` is its place in other outputs.
size_t place_of(const std::string& name, size_t guess, const StepMetrics& sums) {
  if (guess < sums.metrics.size() && sums.metrics[guess].first == name) return guess;
  size_t i = 0;
  while (i < sums.metrics.size() && sums.metrics[i].first != name) ++i;
  return i;
}

}  // namespace

MetricSums::MetricSums(const DeviceReplicator& devices, MemoryRecovery& memory) : devices_(devices), memory_(memory) {
  if (ProcessGroup* group = devices.process_group()) means_.emplace(*group);
}

void MetricSums::add(const std::vector<ReplicaResult>& results, const std::vector<at::Tensor>* state) {
  memory_.run([&] {
    StepMetrics sums = sums_;
    for (const ReplicaResult& result : results) {
      if (result.output) add(*result.output, result, state, sums);
    }
    sums_ = std::move(sums);
  });
  for (const ReplicaResult& result : results) {
    if (nonfinite_.empty()) nonfinite_ = result.nonfinite;
  }
}

/// Creates new tensors instead of changing those in `sums`, so that a failure has no effect.
void MetricSums::add(const LossOutput& output, const ReplicaResult& result, const std::vector<at::Tensor>* state,
                     StepMetrics& sums) const {
  const double share = result.share;
  const bool first = !sums.loss.defined();
  const c10::AutoGradMode no_grad(false);
  const at::Device device = devices_.device();  // of the sums: the first replica may have no rows
  const auto local = [&](const at::Tensor& value) { return value.detach().to(device, /*non_blocking=*/true); };
  if (first && share == 1.0 && devices_.replicas() == 1) {
    // A trace holds tensors too: with graphs, only a parameter or a buffer is copied.
    const auto is_state = [&](const at::Tensor& value) {
      return std::any_of(state->begin(), state->end(),
                         [&](const at::Tensor& tensor) { return tensor.defined() && tensor.is_alias_of(value); });
    };
    const auto own = [&](const at::Tensor& value) {  // as detach(), without the dispatcher
      const bool copies = state ? is_state(value) : is_shared(value, output);
      return copies ? value.detach().clone() : value.tensor_data();
    };
    sums.loss = own(output.loss);
    for (const auto& [name, value] : output.metrics) sums.metrics.emplace_back(name, own(value));
    sums.metric_weights.assign(output.metrics.size(), result.weight);
    return;
  }
  const auto add = [&](const at::Tensor& sum, const at::Tensor& value) {
    if (sum.defined()) return share == 0 ? sum : sum.add(local(value), share);
    if (share != 0) return local(value) * share;
    // Of a whole number too, since shares are fractions.
    return at::zeros({}, value.options().device(device).dtype(at::result_type(value, share)));
  };
  sums.loss = add(sums.loss, output.loss);
  for (size_t i = 0; i < output.metrics.size(); ++i) {
    const auto& [name, value] = output.metrics[i];
    const size_t at = place_of(name, i, sums);
    if (at == sums.metrics.size()) {
      sums.metrics.emplace_back(name, at::Tensor());
      sums.metric_weights.push_back(0);
    }
    sums.metrics[at].second = add(sums.metrics[at].second, value);
    sums.metric_weights[at] += result.weight;
  }
}

void MetricSums::fill() {
  if (sums_.loss.defined()) return;
  memory_.run([&] {
    StepMetrics nothing;
    nothing.loss = at::zeros({}, at::TensorOptions(devices_.device()));
    const auto names = names_.value_or(std::vector<std::string>());  // unknown: the other ranks add them
    for (const std::string& name : names) nothing.metrics.emplace_back(name, at::zeros_like(nothing.loss));
    nothing.metric_weights.assign(names.size(), 0);
    sums_ = std::move(nothing);
  });
}

void MetricSums::correct(const LossWeights& weights) {
  const auto is_exact = [&](double weight) { return weight == weights.expected(); };
  const std::vector<double>& counted = sums_.metric_weights;
  if (is_exact(weights.sum()) && std::all_of(counted.begin(), counted.end(), is_exact)) return;
  memory_.run([&] {
    StepMetrics scaled = sums_;
    scaled.loss = scaled.loss * (weights.expected() / weights.sum());
    scaled.metrics.clear();
    scaled.metric_weights.clear();
    for (size_t i = 0; i < counted.size(); ++i) {
      if (counted[i] == 0) continue;
      const auto& [name, value] = sums_.metrics[i];
      scaled.metrics.emplace_back(name, value * (weights.expected() / counted[i]));
      scaled.metric_weights.push_back(counted[i]);
    }
    sums_ = std::move(scaled);
  });
}

StepMetrics MetricSums::take(const LossWeights& weights) {
  if (!names_ && weights.sum() > 0) {
    names_.emplace();
    for (const auto& [name, value] : sums_.metrics) names_->push_back(name);
  }
  sums_.weight = weights.sum();
  if (sums_.first_nonfinite.empty()) sums_.first_nonfinite = std::move(nonfinite_);
  nonfinite_.clear();
  return std::exchange(sums_, {});
}

void MetricSums::clear() {
  sums_ = {};
  nonfinite_.clear();
}

void MetricSums::average_over_ranks(StepMetrics& metrics) {
  if (means_) means_->average(metrics);
}

}  // namespace trainkit::detail
