#include "trainkit/optim/optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <unordered_set>

#include "core/base/option_problems.h"
#include "optim/optimizer_bucket.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

/// Returns `gradient` with the strides of `param`. The CPU kernels traverse both in memory order, and the CUDA kernels
/// require equal strides. Strides of dimensions of size 1 may differ although the memory order is the same.
at::Tensor with_layout_of(const at::Tensor& param, const at::Tensor& gradient) {
  if (gradient.strides() == param.strides()) return gradient;
  if (gradient.is_contiguous() && param.is_contiguous()) return gradient.as_strided(param.sizes(), param.strides());
  return at::empty_like(param).copy_(gradient);
}

/// Checks a new group, whose parameters must be on `device`. Throws c10::ValueError.
void check_group(const ParamGroup& group, const std::vector<ParamGroup>& groups, at::Device device) {
  TORCH_CHECK_VALUE(group.lr_multiple >= 0 && std::isfinite(group.lr_multiple),
                    "optimizer: lr_multiple must be finite and >= 0, got ", group.lr_multiple);
  TORCH_CHECK_VALUE(!group.weight_decay || (*group.weight_decay >= 0 && std::isfinite(*group.weight_decay)),
                    "optimizer: weight_decay must be finite and >= 0, got ", *group.weight_decay);
  std::unordered_set<std::string_view> names;
  std::unordered_set<const void*> tensors;
  for (const ParamGroup& other : groups) {
    for (const NamedParameter& param : other.params) {
      names.insert(param.name);
      tensors.insert(param.tensor.unsafeGetTensorImpl());
    }
  }
  for (const NamedParameter& param : group.params) {
    const at::Tensor& tensor = param.tensor;
    TORCH_CHECK_VALUE(tensor.defined() && tensor.is_floating_point() && tensor.layout() == at::kStrided &&
                          tensor.is_non_overlapping_and_dense() && tensor.is_leaf(),
                      "optimizer: parameter '", param.name, "' must be a dense floating-point leaf tensor");
    TORCH_CHECK_VALUE(tensor.device() == device, "optimizer: parameter '", param.name, "' is on ", tensor.device(),
                      ", expected ", device, " like the others");
    TORCH_CHECK_VALUE(tensors.count(tensor.unsafeGetTensorImpl()) == 0, "optimizer: parameter '", param.name,
                      "' is already in another group");
    TORCH_CHECK_VALUE(names.insert(param.name).second, "optimizer: duplicate parameter name '", param.name, "'");
  }
}

const at::Tensor& gradient_of(const at::Tensor& param) { return param.unsafeGetTensorImpl()->grad(); }

/// Throws c10::ValueError for a gradient that the kernels cannot read.
void check_gradient(const at::Tensor& gradient, const at::Tensor& param, const std::string& name) {
  TORCH_CHECK_VALUE(gradient.layout() == at::kStrided, "optimizer: the gradient of '", name,
                    "' is sparse, expected a dense one: build the embedding with sparse(false)");
  TORCH_CHECK_VALUE(gradient.scalar_type() == param.scalar_type(), "optimizer: the gradient of '", name, "' is ",
                    gradient.scalar_type(), ", expected ", param.scalar_type(), " like its parameter");
}

}  // namespace

// Note [Optimizer state]
//
// Step counts. steps_ is one float32 tensor: element 0 is the optimizer's count, followed by one count per parameter. A
// step adds advance_all_, or advance_present_ if some parameters have no gradient. With found_inf = 1 the device
// subtracts the same increment again (advance_steps), so that a skipped step leaves every count unchanged. Parameters
// on the CPU need no device-side decision: unless `capturable` is set, the host reads found_inf and returns early. The
// host counts in int64 as long as it knows the count; float32 stays at 2^24.
//
// Memory. add_param_group allocates everything before it changes a member, and a step allocates no tensor memory after
// its first change. An out-of-memory error therefore leaves either the old state or the new one, never a mixture. The
// exceptions are SGD on 16-bit CPU parameters, which makes float32 copies in each step (SGD::apply_in_float), and Muon,
// which allocates scalars and the scratch memory of LibTorch's matrix products.
//
// CUDA graphs. Learning rates and counts move to the device with count_on_device(); device_lrs_ and steps_ are then
// updated in place, because a captured step() reads fixed addresses. version() changes whenever such a step becomes
// invalid: new tensors, another set of gradients, or a loaded state.

Optimizer::Optimizer(const BaseOptions& options)
    : lr_(options.lr),
      initial_lr_(options.lr),
      weight_decay_(options.weight_decay),
      capturable_(options.capturable),
      on_device_(options.capturable) {}
Optimizer::Optimizer(Optimizer&&) noexcept = default;
Optimizer& Optimizer::operator=(Optimizer&&) noexcept = default;
Optimizer::~Optimizer() = default;

Optimizer::BaseOptions Optimizer::base_options() const {
  return {.lr = lr_, .weight_decay = weight_decay_, .capturable = capturable_};
}

std::vector<ParamGroup> Optimizer::groups_for(const torch::nn::Module& model) const {
  return default_param_groups(model);
}

void Optimizer::reserve(const ParamGroup& group) {
  TORCH_CHECK_VALUE(!group.orthogonalize, "optimizer: only Muon takes a group with orthogonalize");
}

void Optimizer::add_param_groups(std::vector<ParamGroup> groups) {
  for (ParamGroup& group : groups) add_param_group(std::move(group));
}

std::vector<ParamGroup> Optimizer::take_param_groups() {
  TORCH_CHECK(max_step_count_ == 0, "optimizer: take_param_groups() after a step");
  buckets_.clear();
  shard_mirrors_.clear();
  steps_ = step_count_ = advance_all_ = advance_present_ = at::Tensor();
  present_.clear();
  device_lrs_ = {};
  ++version_;
  return std::exchange(groups_, {});
}

void Optimizer::add_shards(std::vector<ParamGroup> groups, SumOverShards sum,
                           std::function<size_t(const at::Tensor&)> bucket_of,
                           std::function<void(size_t bucket)> on_updated) {
  shard_of_ = std::move(bucket_of);
  add_param_groups(std::move(groups));
  sum_over_shards_ = std::move(sum);
  on_updated_ = std::move(on_updated);
  std::stable_sort(buckets_.begin(), buckets_.end(),
                   [](const Bucket& a, const Bucket& b) { return a.shard < b.shard; });
}

void Optimizer::sum_over_shards(const std::vector<at::Tensor>& values) const {
  if (sum_over_shards_) sum_over_shards_(values);
}

void Optimizer::add_param_group(ParamGroup group) {
  std::unordered_set<const void*> seen;
  std::erase_if(group.params,
                [&](const NamedParameter& param) { return !seen.insert(param.tensor.unsafeGetTensorImpl()).second; });
  TORCH_CHECK_VALUE(!group.params.empty(), "optimizer: a parameter group is empty");
  const at::Device device = (groups_.empty() ? group : groups_.front()).params.front().tensor.device();
  check_group(group, groups_, device);

  // Make all allocations before the first change. See Note [Optimizer state].
  const at::NoGradGuard no_grad;
  reserve(group);
  const std::vector<std::string> kinds = state_names(group);
  const int64_t old_size = steps_.defined() ? steps_.numel() : 1;
  const int64_t size = old_size + static_cast<int64_t>(group.params.size());
  at::Tensor steps = at::zeros({size}, at::device(device).dtype(at::kFloat));
  at::Tensor advance_all = at::ones_like(steps);
  if (steps_.defined()) steps.narrow(0, 0, old_size).copy_(steps_);
  std::vector<Bucket> buckets;
  for (size_t i = 0; i < group.params.size(); ++i) {
    const NamedParameter& param = group.params[i];
    const size_t shard = shard_of_ ? shard_of_(param.tensor) : 0;
    auto bucket = std::find_if(buckets.begin(), buckets.end(), [&](const Bucket& candidate) {
      return candidate.shard == shard && candidate.params.front().scalar_type() == param.tensor.scalar_type();
    });
    if (bucket == buckets.end()) bucket = buckets.emplace(bucket);
    bucket->group = groups_.size();
    bucket->shard = shard;
    bucket->state.resize(kinds.size());
    bucket->names.push_back(param.name);
    bucket->params.push_back(param.tensor);
    bucket->positions.push_back(old_size + static_cast<int64_t>(i));
    for (auto& list : bucket->state) list.push_back(at::zeros_like(param.tensor));
    bucket->gradients.emplace_back();
  }

  std::vector<ParamGroup> groups = groups_;
  groups.push_back(std::move(group));
  DeviceLrs device_lrs = on_device_ ? DeviceLrs::make(groups, lr_) : DeviceLrs{};

  groups_ = std::move(groups);
  device_lrs_ = std::move(device_lrs);
  for (Bucket& bucket : buckets) buckets_.push_back(std::move(bucket));
  steps_ = std::move(steps);
  step_count_ = steps_.select(0, 0);
  for (Bucket& bucket : buckets_) {
    bucket.steps.clear();
    for (const int64_t position : bucket.positions) bucket.steps.push_back(steps_.select(0, position));
  }
  advance_all_ = std::move(advance_all);
  advance_present_ = at::Tensor();
  present_.assign(static_cast<size_t>(size), 1);
  ++version_;
}

void Optimizer::count_on_device() {
  if (!groups_.empty() && !device_lrs_.values.defined()) {
    device_lrs_ = DeviceLrs::make(groups_, lr_);
    ++version_;
  }
  on_device_ = true;
}

void Optimizer::set_lr(double lr) {
  set_scheduled_lr(lr);
  initial_lr_ = lr;
}

void Optimizer::set_scheduled_lr(double lr) {
  TORCH_CHECK_VALUE(lr >= 0 && std::isfinite(lr), "optimizer: lr must be finite and >= 0, got ", lr);
  lr_ = lr;
  if (device_lrs_.values.defined()) device_lrs_.values.copy_(device_lrs_.multiples.mul(lr));
}

void Optimizer::set_lr_from(const Optimizer& other) {
  lr_ = other.lr_;
  initial_lr_ = other.initial_lr_;
  if (!other.device_lrs_.values.defined()) return;
  count_on_device();
  device_lrs_.values.copy_(other.device_lrs_.values, /*non_blocking=*/true);
}

std::vector<double> Optimizer::group_lrs() const {
  std::vector<double> lrs;
  if (device_lrs_.values.defined()) {
    const at::Tensor host = device_lrs_.values.to(at::kCPU, at::kDouble);
    lrs.assign(host.const_data_ptr<double>(), host.const_data_ptr<double>() + host.numel());
  } else {
    for (const ParamGroup& group : groups_) lrs.push_back(lr_ * group.lr_multiple);
  }
  return lrs;
}

void Optimizer::set_lr_on_device(const at::Tensor& lr) {
  TORCH_CHECK(device_lrs_.values.defined(), "optimizer: learning rates are not kept on the device");
  at::mul_out(device_lrs_.values, device_lrs_.multiples, lr);
}

void Optimizer::step() {
  stepped_without_scaler();
  apply_step(std::nullopt);
}

void Optimizer::step_unless(const at::Tensor& found_inf) { apply_step(found_inf); }

void Optimizer::apply_step(const std::optional<at::Tensor>& found_inf) {
  TORCH_CHECK(!groups_.empty(), "optimizer: step() without parameters: call add_param_group first");
  const at::NoGradGuard no_grad;
  const bool on_cpu = steps_.is_cpu();
  if (found_inf && !on_cpu) count_on_device();
  if (found_inf && !on_device_ && *found_inf->const_data_ptr<float>() != 0) {  // on the CPU: the host's own memory
    ++max_step_count_;
    ++skipped_step_count_;
    return;
  }
  const bool all_present = collect_gradients();
  // Everything that can fail is done: from here the step completes.
  ++max_step_count_;
  advance_steps(found_inf, all_present);
  for (size_t i = 0; i < buckets_.size(); ++i) {
    Bucket& bucket = buckets_[i];
    if (all_present) {
      apply_to(bucket, found_inf);
    } else if (const Bucket some = bucket.with_gradients(); !some.params.empty()) {
      apply_to(some, found_inf);
    }
    // Release the gradient now: zero_grad could not free a gradient that the bucket still holds.
    for (at::Tensor& gradient : bucket.gradients) gradient.reset();
    const bool is_last = i + 1 == buckets_.size() || buckets_[i + 1].shard != bucket.shard;
    if (is_last && on_updated_) on_updated_(bucket.shard);
  }
}

void Optimizer::apply_to(const Bucket& bucket, const std::optional<at::Tensor>& found_inf) {
  static const at::Tensor kNone;
  const ParamGroup& group = groups_[bucket.group];
  apply({.params = bucket.params,
         .gradients = bucket.gradients,
         .state = bucket.state,
         .steps = bucket.steps,
         .lr = lr_ * group.lr_multiple,
         .device_lr = on_device_ ? device_lrs_.views[bucket.group] : kNone,
         .weight_decay = group.weight_decay.value_or(weight_decay_),
         .found_inf = found_inf,
         .orthogonalize = group.orthogonalize});
}

/// Fills the buckets' gradients and present_. Returns true if every parameter has a gradient.
bool Optimizer::collect_gradients() {
  bool all_present = true;
  bool changed = false;
  for (Bucket& bucket : buckets_) {
    for (size_t i = 0; i < bucket.params.size(); ++i) {
      const at::Tensor& param = bucket.params[i];
      const at::Tensor& gradient = gradient_of(param);
      char& present = present_[static_cast<size_t>(bucket.positions[i])];
      changed |= present != static_cast<char>(gradient.defined());
      present = static_cast<char>(gradient.defined());
      if (!gradient.defined()) {
        all_present = false;
        bucket.gradients[i].reset();
        continue;
      }
      check_gradient(gradient, param, bucket.names[i]);
      bucket.gradients[i] = with_layout_of(param, gradient);
    }
  }
  if (changed) {
    advance_present_.reset();
    ++version_;
  }
  if (!all_present && !advance_present_.defined()) {
    at::Tensor advance = at::empty({static_cast<int64_t>(present_.size())}, at::kFloat);
    std::copy(present_.begin(), present_.end(), advance.mutable_data_ptr<float>());
    advance_present_ = advance.to(steps_.device());
  }
  return all_present;
}

void Optimizer::advance_steps(const std::optional<at::Tensor>& found_inf, bool all_present) {
  const at::Tensor& advance = all_present ? advance_all_ : advance_present_;
  if (steps_.is_cpu() && !on_device_) {
    float* steps = steps_.mutable_data_ptr<float>();
    const float* by = advance.const_data_ptr<float>();
    for (int64_t i = 0; i < steps_.numel(); ++i) steps[i] += by[i];
    return;
  }
  steps_.add_(advance);
  if (found_inf) steps_.addcmul_(advance, *found_inf, -1);
}

Optimizer::DeviceLrs Optimizer::DeviceLrs::make(const std::vector<ParamGroup>& groups, double lr) {
  std::vector<double> multiples;
  multiples.reserve(groups.size());
  for (const ParamGroup& group : groups) multiples.push_back(group.lr_multiple);
  DeviceLrs lrs;
  lrs.multiples = at::tensor(multiples, at::kDouble).to(groups.front().params.front().tensor.device());
  lrs.values = lrs.multiples.mul(lr).to(at::kFloat);  // the dtype that the CUDA kernels read
  lrs.views = lrs.values.unbind();
  return lrs;
}

void Optimizer::zero_grad(bool set_to_none) {
  for (Bucket& bucket : buckets_) {
    for (const at::Tensor& param : bucket.params) {
      at::Tensor& gradient = param.mutable_grad();
      if (!gradient.defined()) continue;
      if (set_to_none) {
        gradient.reset();
      } else {
        if (gradient.requires_grad()) gradient = gradient.detach();
        gradient.zero_();
      }
    }
  }
}

std::vector<at::Tensor> Optimizer::gradients() const {
  std::vector<at::Tensor> gradients;
  for (const Bucket& bucket : buckets_) {
    for (size_t i = 0; i < bucket.params.size(); ++i) {
      const at::Tensor& gradient = gradient_of(bucket.params[i]);
      if (!gradient.defined()) continue;
      check_gradient(gradient, bucket.params[i], bucket.names[i]);
      gradients.push_back(gradient);
    }
  }
  return gradients;
}

std::optional<int64_t> Optimizer::known_step_count() const {
  if (on_device_) return std::nullopt;
  if (!steps_.defined()) return 0;
  return max_step_count_ - skipped_step_count_;
}

}  // namespace trainkit
