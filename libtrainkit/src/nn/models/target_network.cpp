#include "trainkit/nn/target_network.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_lerp.h>
#include <c10/util/Exception.h>

#include <unordered_set>

#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

using Named = torch::OrderedDict<std::string, at::Tensor>;

void check_same_layout(const char* what, const Named& online, const Named& target) {
  TORCH_CHECK_VALUE(online.size() == target.size(), "TargetNetwork: the target has ", target.size(), " ", what,
                    ", the network ", online.size());
  for (const auto& item : online) {
    const at::Tensor* other = target.find(item.key());
    TORCH_CHECK_VALUE(other && other->sizes() == item.value().sizes() && other->dtype() == item.value().dtype(),
                      "TargetNetwork: the target has no '", item.key(), "' of shape ", item.value().sizes(),
                      " and type ", item.value().dtype());
    TORCH_CHECK_VALUE(!other->is_same(item.value()), "TargetNetwork: the target shares '", item.key(),
                      "' with the network: make a second module");
  }
}

absl::Status bad_state(const std::string& field, const std::string& problem) {
  return to_status({.exit_code = ExitCode::kWeights, .id = "ckpt.target_network", .field = field, .problem = problem},
                   absl::StatusCode::kInvalidArgument);
}

}  // namespace

TargetNetwork::TargetNetwork(const torch::nn::Module& online, std::shared_ptr<torch::nn::Module> target,
                             const TargetNetworkOptions& options)
    : target_(std::move(target)), options_(options) {
  TORCH_CHECK_VALUE(options.tau > 0 && options.tau <= 1, "TargetNetwork: tau must be in (0, 1], got ", options.tau);
  TORCH_CHECK_VALUE(options.every >= 1, "TargetNetwork: every must be >= 1, got ", options.every);
  TORCH_CHECK_VALUE(target_, "TargetNetwork: no target");
  const Named parameters = online.named_parameters(), buffers = online.named_buffers();
  check_same_layout("parameters", parameters, target_->named_parameters());
  check_same_layout("buffers", buffers, target_->named_buffers());
  if (!parameters.is_empty()) target_->to(parameters.begin()->value().device());
  const Named own_parameters = target_->named_parameters(), own_buffers = target_->named_buffers();
  const at::NoGradGuard no_grad;
  std::unordered_set<const void*> seen;  // a tied parameter is averaged once
  for (const auto& item : parameters) {
    at::Tensor own = own_parameters[item.key()];
    own.requires_grad_(false);
    if (!seen.insert(own.unsafeGetTensorImpl()).second) continue;
    own.copy_(item.value());
    names_.push_back(item.key());
    online_.push_back(item.value());
    average_.push_back(own);
  }
  for (const auto& item : buffers) {
    names_.push_back(item.key());
    buffers_.emplace_back(item.value(), own_buffers[item.key()]);
    buffers_.back().second.copy_(item.value());
  }
}

void TargetNetwork::update() {
  if (++updates_ % options_.every != 0) return;
  const at::NoGradGuard no_grad;
  if (options_.tau == 1) {
    for (size_t i = 0; i < average_.size(); ++i) average_[i].copy_(online_[i]);
  } else if (!average_.empty()) {
    at::_foreach_lerp_(average_, online_, options_.tau);
  }
  for (const auto& [from, to] : buffers_) to.copy_(from);
}

StateDict TargetNetwork::state_dict() const {
  StateDict state = {{"updates", updates_}};
  for (size_t i = 0; i < names_.size(); ++i) {
    state["target." + names_[i]] = i < average_.size() ? average_[i] : buffers_[i - average_.size()].second;
  }
  return state;
}

absl::Status TargetNetwork::load_state_dict(const StateDict& state) {
  TRAINKIT_ASSIGN_OR_RETURN(const int64_t updates, get_state<int64_t>(state, "updates"));
  if (updates < 0) return bad_state("updates", "is negative");
  const StateDict own = state_dict();
  for (const auto& [name, value] : own) {
    const auto* const tensor = std::get_if<at::Tensor>(&value);
    if (!tensor) continue;
    TRAINKIT_ASSIGN_OR_RETURN(const at::Tensor saved, get_state<at::Tensor>(state, name));
    if (saved.sizes() != tensor->sizes() || saved.dtype() != tensor->dtype()) {
      return bad_state(name, "has another shape or type");
    }
  }
  const at::NoGradGuard no_grad;
  for (const auto& [name, value] : own) {
    if (const auto* const tensor = std::get_if<at::Tensor>(&value)) {
      tensor->copy_(std::get<at::Tensor>(state.find(name)->second));
    }
  }
  updates_ = updates;
  return absl::OkStatus();
}

}  // namespace trainkit
