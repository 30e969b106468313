#include "optim/optimizer_parts.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

namespace trainkit::detail {
namespace {

/// Returns `gradient` with the strides of `param`. The CPU kernels traverse both in memory order, and the CUDA kernels
/// require equal strides. A sparse gradient stays as it is. Strides of dimensions of size 1 may differ although the
/// memory order is the same.
at::Tensor with_layout_of(const at::Tensor& param, const at::Tensor& gradient) {
  if (gradient.is_sparse() || gradient.strides() == param.strides()) return gradient;
  if (gradient.is_contiguous() && param.is_contiguous()) return gradient.as_strided(param.sizes(), param.strides());
  return at::empty_like(param).copy_(gradient);
}

}  // namespace

// Note [Optimizer state]
//
// Step counts. StepCounts has one float32 tensor: element 0 is the optimizer's count, followed by one count per
// parameter. A step adds advance_all_, or advance_present_ if some parameters have no gradient. With found_inf = 1 the
// device subtracts the same increment again, so that a skipped step leaves every count unchanged. Parameters on the CPU
// need no device-side decision: unless `capturable` is set, the host reads found_inf and returns early. The host counts
// in int64 as long as it knows the count; float32 stays at 2^24.
//
// Memory. add() allocates everything before it changes a member, and a step allocates no tensor memory after its first
// change. An out-of-memory error therefore leaves either the old state or the new one, never a mixture. The exceptions
// are SGD and Adagrad on 16-bit CPU parameters, which make float32 copies in each step (in_float.h), RMSprop outside
// float32 and float64 on the CPU and float32 on a GPU, Muon, which allocates scalars and the scratch memory of
// LibTorch's matrix products, and rows of SparseAdam outside float32 on the CPU and of Adagrad, which allocate the new
// values of a parameter's rows before they write them. Gradients are coalesced before.
//
// CUDA graphs. Learning rates and counts move to the device with count_on_device(); both are then updated in place,
// because a captured step() reads fixed addresses. `version` changes whenever such a step becomes invalid: new tensors,
// another set of gradients, or a loaded state.

void OptimizerParts::add(ParamGroup group, const std::vector<std::string>& kinds) {
  // Make all allocations before the first change. See Note [Optimizer state].
  StepCounts grown = counts.grown(std::ssize(group.params), group.params.front().tensor.device());
  std::vector<ParameterBucket> added = parameters.buckets_for(group, kinds, counts.size(), shards.bucket_of);
  std::vector<ParamGroup> groups = parameters.groups;
  groups.push_back(std::move(group));
  LearningRates of_groups = counts.are_on_device() ? rates.on_device_of(groups) : rates;

  counts = std::move(grown);
  rates = std::move(of_groups);
  parameters.groups = std::move(groups);
  std::move(added.begin(), added.end(), std::back_inserter(parameters.buckets));
  for (ParameterBucket& bucket : parameters.buckets) {
    bucket.steps.clear();
    for (const int64_t position : bucket.positions) bucket.steps.push_back(counts.at(position));
  }
  ++version;
}

std::vector<ParamGroup> OptimizerParts::take_groups() {
  TORCH_CHECK(counts.upper_bound() == 0, "optimizer: take_param_groups() after a step");
  shards.mirrors.clear();
  counts = StepCounts(counts.are_on_device());
  rates.forget_groups();
  ++version;
  return std::exchange(parameters, ParameterBuckets{.takes_sparse = parameters.takes_sparse,
                                                    .initial_state = parameters.initial_state})
      .groups;
}

void OptimizerParts::count_on_device() {
  if (!parameters.groups.empty() && !rates.are_on_device()) {
    rates = rates.on_device_of(parameters.groups);
    ++version;
  }
  counts.count_on_device();
}

void OptimizerParts::set_group_lr(std::string_view name, double lr, double base) {
  TORCH_CHECK_VALUE(lr >= 0 && std::isfinite(lr), "optimizer: lr must be finite and >= 0, got ", lr);
  std::vector<ParamGroup>& groups = parameters.groups;
  const auto is_named = [&](const ParamGroup& group) { return group.name == name; };
  TORCH_CHECK_VALUE(std::count_if(groups.begin(), groups.end(), is_named) == 1, "optimizer: no group named '", name,
                    "', or several");
  const auto found = std::find_if(groups.begin(), groups.end(), is_named);
  const double before = found->lr_multiple;
  TORCH_CHECK_VALUE(before > 0 && base > 0, "optimizer: a group of learning rate 0 has no multiple to change");
  found->lr_multiple = lr / base;
  rates.set_multiple(static_cast<size_t>(found - groups.begin()), found->lr_multiple, found->lr_multiple / before);
}

void OptimizerParts::set_lr_from(const OptimizerParts& other) {
  if (other.rates.are_on_device()) count_on_device();
  rates.assign(other.rates);
}

void OptimizerParts::step(const std::optional<at::Tensor>& found_inf,
                          c10::function_ref<void(const ParameterBucket&)> apply) {
  TORCH_CHECK(!parameters.groups.empty(), "optimizer: step() without parameters: call add_param_group first");
  const at::NoGradGuard no_grad;
  if (found_inf && !counts.are_in_host_memory()) count_on_device();
  if (found_inf && !counts.are_on_device() && *found_inf->const_data_ptr<float>() != 0) {  // the host's own memory
    return counts.count_skipped();
  }
  const bool all_present = collect_gradients();
  // Everything that can fail is done: from here the step completes.
  counts.advance(found_inf, all_present);
  std::vector<ParameterBucket>& buckets = parameters.buckets;
  for (size_t i = 0; i < buckets.size(); ++i) {
    ParameterBucket& bucket = buckets[i];
    if (all_present) {
      apply(bucket);
    } else if (const ParameterBucket some = bucket.with_gradients(); !some.params.empty()) {
      apply(some);
    }
    // Release the gradient now: zero_grad could not free a gradient that the bucket still holds.
    for (at::Tensor& gradient : bucket.gradients) gradient.reset();
    const bool is_last = i + 1 == buckets.size() || buckets[i + 1].shard != bucket.shard;
    if (is_last && shards.on_updated) shards.on_updated(bucket.shard);
  }
}

/// Fills the buckets' gradients. Returns whether every parameter has one.
bool OptimizerParts::collect_gradients() {
  for (ParameterBucket& bucket : parameters.buckets) {
    for (size_t i = 0; i < bucket.params.size(); ++i) {
      const at::Tensor& gradient = parameters.gradient_of(bucket, i);
      if (counts.note_gradient(bucket.positions[i], gradient.defined())) ++version;
      bucket.gradients[i] = gradient.defined() ? with_layout_of(bucket.params[i], gradient) : at::Tensor();
    }
  }
  return counts.prepare();
}

void add_shards(Optimizer& optimizer, std::vector<ParamGroup> groups, SumOverShards sum, OptimizerShards shards) {
  OptimizerParts& parts = OptimizerParts::of(optimizer);
  parts.shards.bucket_of = std::move(shards.bucket_of);
  optimizer.add_param_groups(std::move(groups));
  ScalingState::of(optimizer)->sum_over_shards = std::move(sum);
  parts.shards.on_updated = std::move(shards.on_updated);
  std::stable_sort(parts.parameters.buckets.begin(), parts.parameters.buckets.end(),
                   [](const ParameterBucket& a, const ParameterBucket& b) { return a.shard < b.shard; });
}

bool is_sharded(const Optimizer& optimizer) { return ScalingState::of(optimizer)->sum_over_shards != nullptr; }

}  // namespace trainkit::detail
