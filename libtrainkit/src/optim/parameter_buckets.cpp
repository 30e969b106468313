#include "optim/parameter_buckets.h"

#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <unordered_set>

#include "core/tensors/coalesced.h"

namespace trainkit::detail {

ParameterBucket ParameterBucket::with_gradients() const {
  ParameterBucket some;
  some.group = group;
  some.state.resize(state.size());
  for (size_t i = 0; i < params.size(); ++i) {
    if (!gradients[i].defined()) continue;
    some.params.push_back(params[i]);
    some.gradients.push_back(gradients[i]);
    some.steps.push_back(steps[i]);
    for (size_t k = 0; k < state.size(); ++k) some.state[k].push_back(state[k][i]);
  }
  return some;
}

void ParameterBuckets::check(const ParamGroup& group) const {
  TORCH_CHECK_VALUE(!group.params.empty(), "optimizer: a parameter group is empty");
  const at::Device device = (groups.empty() ? group : groups.front()).params.front().tensor.device();
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

std::vector<ParameterBucket> ParameterBuckets::buckets_for(
    const ParamGroup& group, const std::vector<std::string>& kinds, int64_t position,
    const std::function<size_t(const at::Tensor&)>& shard_of) const {
  std::vector<ParameterBucket> added;
  for (const NamedParameter& param : group.params) {
    const size_t shard = shard_of ? shard_of(param.tensor) : 0;
    auto bucket = std::find_if(added.begin(), added.end(), [&](const ParameterBucket& candidate) {
      return candidate.shard == shard && candidate.params.front().scalar_type() == param.tensor.scalar_type();
    });
    if (bucket == added.end()) bucket = added.emplace(bucket);
    bucket->group = groups.size();
    bucket->shard = shard;
    bucket->kinds = kinds;
    bucket->state.resize(kinds.size());
    bucket->names.push_back(param.name);
    bucket->params.push_back(param.tensor);
    bucket->positions.push_back(position++);
    for (auto& list : bucket->state) {
      list.push_back(at::zeros_like(param.tensor));  // which a memory plan does not touch
      if (initial_state != 0) list.back().fill_(initial_state);
    }
    bucket->gradients.emplace_back();
  }
  return added;
}

void ParameterBuckets::zero_grad(bool set_to_none) const {
  for (const ParameterBucket& bucket : buckets) {
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

std::vector<at::Tensor> ParameterBuckets::gradients() const {
  std::vector<at::Tensor> gradients;
  for (const ParameterBucket& bucket : buckets) {
    for (size_t i = 0; i < bucket.params.size(); ++i) {
      const at::Tensor& gradient = gradient_of(bucket, i);
      if (gradient.defined()) gradients.push_back(gradient.is_sparse() ? gradient._values() : gradient);
    }
  }
  return gradients;
}

const at::Tensor& ParameterBuckets::gradient_of(const ParameterBucket& bucket, size_t i) const {
  const at::Tensor& param = bucket.params[i];
  at::Tensor& gradient = param.mutable_grad();
  if (!gradient.defined()) return gradient;
  const bool is_sparse = gradient.layout() == at::kSparse;
  TORCH_CHECK_VALUE(
      gradient.layout() == at::kStrided || (is_sparse && takes_sparse), "optimizer: the gradient of '", bucket.names[i],
      "' is sparse, expected a dense one: build the embedding with sparse(false), or use SparseAdam or Adagrad");
  TORCH_CHECK_VALUE(gradient.scalar_type() == param.scalar_type(), "optimizer: the gradient of '", bucket.names[i],
                    "' is ", gradient.scalar_type(), ", expected ", param.scalar_type(), " like its parameter");
  if (is_sparse && !gradient.is_coalesced()) gradient = coalesced(gradient);
  return gradient;
}

}  // namespace trainkit::detail
