#include "distributed/shards/parameter_shards.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>

namespace trainkit::detail {

ParameterShards::ParameterShards(std::vector<at::Tensor> parameters,
                                 const std::function<bool(const at::Tensor&)>& is_whole,
                                 const DeviceReplicatorOptions& options, ShardCollectives collectives)
    : collectives_(std::move(collectives)),
      parameters_(std::move(parameters)),
      layout_(make_layout(parameters_, is_whole, options, collectives_)),
      gathering_(collectives_),
      parts_(move_weights()),
      reduction_(layout_, parameters_, parts_, options, collectives_) {}

ShardLayout ParameterShards::make_layout(const std::vector<at::Tensor>& parameters,
                                         const std::function<bool(const at::Tensor&)>& is_whole,
                                         const DeviceReplicatorOptions& options, const ShardCollectives& collectives) {
  std::vector<at::Tensor> shapes;
  std::vector<char> whole;
  for (const at::Tensor& parameter : parameters) {
    TORCH_CHECK_VALUE(parameter.is_non_overlapping_and_dense(), "sharding needs dense parameters");
    whole.push_back(is_whole && is_whole(parameter) ? 1 : 0);
    shapes.push_back(at::empty_strided(parameter.sizes(), parameter.strides(), parameter.options().device(at::kMeta)));
  }
  return {std::move(shapes),
          std::move(whole),
          {.rank = collectives.rank,
           .ranks = collectives.ranks,
           .first_bytes = options.first_bucket_bytes,
           .bucket_bytes = options.bucket_bytes}};
}

/// Moves the weights into the buckets' memory, which the gathering gets; returns their parts.
std::vector<at::Tensor> ParameterShards::move_weights() {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> parts(parameters_.size());
  const std::vector<at::Tensor> weights = release_weights();
  for (size_t b = 0; b < layout_.buckets().size(); ++b) {
    const std::vector<size_t>& members = layout_.buckets()[b].parameters;
    const at::TensorOptions like = parameters_[members.front()].options().requires_grad(false);
    const at::Tensor bucket = at::zeros({layout_.elements(b)}, like);
    for (const size_t p : members) {
      const at::Tensor place = layout_.view(p, bucket);
      if (weights[p].defined()) at::Tensor(place).copy_(weights[p]);
      parameters_[p].set_data(place);
      parts[p] = layout_.cut(p, layout_.own_part(b, bucket));
    }
    if (collectives_.share) collectives_.share(bucket);
    gathering_.add(bucket);
  }
  return parts;
}

/// Returns the weights, on the host if they come from a GPU: their memory is freed before that of the buckets is
/// allocated, so that it is neither needed twice nor left in pieces between them.
std::vector<at::Tensor> ParameterShards::release_weights() {
  std::vector<at::Tensor> weights;
  for (at::Tensor& parameter : parameters_) {
    if (!collectives_.empty_cache) {
      weights.push_back(parameter.detach());
      continue;
    }
    weights.push_back(collectives_.keeps_weights ? parameter.detach().to(at::kCPU) : at::Tensor());
    parameter.set_data(at::empty({0}, parameter.options().requires_grad(false)));
  }
  if (collectives_.empty_cache) collectives_.empty_cache();
  return weights;
}

void ParameterShards::begin(bool reduces, std::function<void()> on_sent) {
  gathering_.begin();
  reduction_.begin(reduces, std::move(on_sent));
}

const at::Tensor* ParameterShards::find_part(const at::Tensor& parameter) const {
  const auto found = std::find_if(parameters_.begin(), parameters_.end(),
                                  [&](const at::Tensor& one) { return one.is_same(parameter); });
  return found == parameters_.end() ? nullptr : &parts_[static_cast<size_t>(found - parameters_.begin())];
}

const at::Tensor& ParameterShards::part(const at::Tensor& parameter) const {
  const at::Tensor* part = find_part(parameter);
  TORCH_CHECK_VALUE(part, "a parameter of the optimizer is not a trained one of the model");
  return *part;
}

size_t ParameterShards::index_of_part(const at::Tensor& part) const {
  const auto found =
      std::find_if(parts_.begin(), parts_.end(), [&](const at::Tensor& one) { return one.is_same(part); });
  TORCH_CHECK_INDEX(found != parts_.end(), "the tensor is not a part of a parameter");
  return static_cast<size_t>(found - parts_.begin());
}

bool ParameterShards::is_part(const at::Tensor& tensor) const {
  return std::any_of(parts_.begin(), parts_.end(), [&](const at::Tensor& one) { return one.is_same(tensor); });
}

std::vector<at::Tensor> ParameterShards::gather(const std::vector<std::pair<at::Tensor, at::Tensor>>& parts) const {
  const at::NoGradGuard no_grad;
  // A bucket is sent once per tensor of a parameter: {bucket, n-th tensor of the parameter} -> pairs.
  std::map<std::pair<size_t, size_t>, std::vector<size_t>> messages;
  std::vector<size_t> tensors(parts_.size()), parameters;
  for (size_t i = 0; i < parts.size(); ++i) {
    parameters.push_back(index_of_part(parts[i].first));
    messages[{layout_.bucket_of(parameters[i]), tensors[parameters[i]]++}].push_back(i);
  }
  std::vector<at::Tensor> whole(parts.size());
  for (const auto& [message, members] : messages) {
    const int64_t elements = layout_.buckets()[message.first].part;
    const at::Tensor own = at::zeros({elements}, parts[members.front()].second.scalar_type());
    for (const size_t i : members) {
      TORCH_CHECK(parts[i].second.scalar_type() == own.scalar_type(), "tensors of a bucket have several dtypes");
      layout_.cut(parameters[i], own).copy_(parts[i].second);
    }
    const at::Tensor all = collectives_.gather_on_host(own);
    if (!all.defined()) continue;
    for (const size_t i : members) whole[i] = layout_.view(parameters[i], all);
  }
  return whole;
}

}  // namespace trainkit::detail
