#include "train/update/step_gradients.h"

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <string>
#include <unordered_set>

namespace trainkit::detail {
namespace {

std::pair<const void*, int64_t> version_of(const at::Tensor& gradient) {
  if (!gradient.defined()) return {nullptr, 0};
  return {gradient.unsafeGetTensorImpl(), static_cast<int64_t>(gradient._version())};
}

}  // namespace

StepGradients::StepGradients(const ReplicaStrategy& devices, const Optimizer& optimizer, bool set_to_none)
    : devices_(devices), optimizer_(optimizer), set_to_none_(set_to_none) {
  list_parameters();
}

int64_t StepGradients::count_parameters() const {
  int64_t count = 0;
  for (const ParamGroup& group : optimizer_.param_groups()) count += std::ssize(group.params);
  return count;
}

/// With sharding the optimizer has parts of the parameters, and all of them are its own.
void StepGradients::list_parameters() {
  count_ = count_parameters();
  trained_version_ = devices_.trained_version();
  std::unordered_set<const void*> trained;
  for (const ParamGroup& group : optimizer_.param_groups()) {
    for (const NamedParameter& parameter : group.params) trained.insert(parameter.tensor.unsafeGetTensorImpl());
  }
  const auto parameters = devices_.module()->named_parameters();
  std::unordered_set<std::string> names;
  for (const auto& parameter : parameters) {
    if (devices_.shards() || trained.contains(parameter.value().unsafeGetTensorImpl())) names.insert(parameter.key());
  }
  own_.clear();
  others_.clear();
  for (int64_t replica = 0; replica < devices_.replicas(); ++replica) {
    for (const auto& parameter : devices_.module(replica)->named_parameters()) {
      if (names.contains(parameter.key())) {
        own_.push_back(parameter.value());
      } else if (parameter.value().requires_grad()) {
        others_.push_back(parameter.value());
      }
    }
  }
  aside_.resize(others_.size());
  zeroed_.assign(own_.size(), {nullptr, 0});
}

void StepGradients::follow_step(int64_t done) const {
  for (const ParamGroup& group : optimizer_.param_groups()) {
    if (group.trainable_from == 0) continue;
    TORCH_CHECK_VALUE(!devices_.shards(), "ParamGroup::trainable_from cannot be used with sharding");
    const bool trained = done >= group.trainable_from;
    for (const NamedParameter& parameter : group.params) {
      if (parameter.tensor.requires_grad() != trained) parameter.tensor.set_requires_grad(trained);
    }
  }
}

void StepGradients::begin() {
  if (count_parameters() != count_ || devices_.trained_version() != trained_version_) list_parameters();
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < own_.size(); ++i) {
    at::Tensor& gradient = own_[i].mutable_grad();
    if (!gradient.defined()) continue;
    if (set_to_none_) {
      gradient.reset();
    } else if (version_of(gradient) != zeroed_[i]) {
      if (gradient.requires_grad()) gradient = gradient.detach();
      gradient.zero_();
      zeroed_[i] = version_of(gradient);
    }
  }
}

void StepGradients::end() {
  if (set_to_none_) return;
  for (size_t i = 0; i < own_.size(); ++i) zeroed_[i] = version_of(own_[i].mutable_grad());
}

bool StepGradients::any() {
  const auto has_gradient = [](const at::Tensor& parameter) { return parameter.mutable_grad().defined(); };
  has_any_ = has_any_ || std::any_of(own_.begin(), own_.end(), has_gradient);
  return has_any_;
}

StepGradients::SetAside::SetAside(StepGradients& gradients) : gradients_(gradients) {
  for (size_t i = 0; i < gradients_.others_.size(); ++i) {
    at::Tensor& gradient = gradients_.others_[i].mutable_grad();
    if (!gradient.defined()) continue;
    // The memory of a bucket is overwritten by the next reduction.
    const bool is_shared = gradient.layout() == at::kStrided && gradient.storage().use_count() > 1;
    gradients_.aside_[i] = is_shared ? gradient.clone() : gradient;
    gradient.reset();
  }
}

StepGradients::SetAside::~SetAside() {
  for (size_t i = 0; i < gradients_.others_.size(); ++i) {
    gradients_.others_[i].mutable_grad() = std::exchange(gradients_.aside_[i], at::Tensor());
  }
}

}  // namespace trainkit::detail
