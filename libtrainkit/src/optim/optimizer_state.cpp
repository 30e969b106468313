// The state that an Optimizer saves and loads.
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "core/base/option_problems.h"
#include "optim/optimizer_bucket.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

constexpr char kInitialLr[] = "initial_lr";  // missing in older states

absl::Status bad_state(std::string field, std::string problem, std::string got = {}, std::string expected = {}) {
  return to_status({.exit_code = ExitCode::kWeights,
                    .id = "ckpt.optimizer",
                    .field = std::move(field),
                    .problem = std::move(problem),
                    .got = std::move(got),
                    .expected = std::move(expected)},
                   absl::StatusCode::kInvalidArgument);
}

std::string shape_text(const at::Tensor& tensor) {
  std::string text = std::string(c10::toString(tensor.scalar_type())) + " [";
  for (const int64_t size : tensor.sizes()) text += (text.back() == '[' ? "" : ", ") + std::to_string(size);
  return text + "]";
}

std::string group_key(size_t group, const char* name) { return "groups." + std::to_string(group) + "." + name; }

/// "state.<parameter>.<name>".
std::string state_key(const std::string& parameter, const std::string& name) {
  return "state." + parameter + "." + name;
}

/// Checks entry `name` of a saved state against `mine`, the value of this optimizer, for a state of `steps` steps.
absl::Status check_entry(const std::string& name, const StateValue& saved, const StateValue& mine, int64_t steps) {
  if (saved.index() != mine.index()) return bad_state(name, "has a different type in the saved optimizer state");
  if (const double* number = std::get_if<double>(&saved); number && !detail::finite_not_negative(*number)) {
    return bad_state(name, "is out of range", std::to_string(*number), "finite and >= 0");
  }
  const at::Tensor* expected = std::get_if<at::Tensor>(&mine);
  if (!expected) return absl::OkStatus();
  const at::Tensor& tensor = std::get<at::Tensor>(saved);
  if (!tensor.defined() || tensor.scalar_type() != expected->scalar_type() || tensor.sizes() != expected->sizes()) {
    return bad_state(name, "has a different shape or dtype in the saved optimizer state",
                     tensor.defined() ? shape_text(tensor) : "nothing", shape_text(*expected));
  }
  if (name.ends_with(".step")) {
    const double count = tensor.item<double>();
    if (!(count >= 0 && count <= static_cast<double>(steps) && count == std::floor(count))) {
      return bad_state(name, "is out of range", std::to_string(count), "0.." + std::to_string(steps));
    }
  }
  return absl::OkStatus();
}

}  // namespace

StateDict Optimizer::state_dict() const {
  StateDict state{{"type", std::string(type())}, {"lr", lr_}, {kInitialLr, initial_lr_}, {"step", int64_t{0}}};
  if (const auto known = known_step_count()) {
    state["step"] = *known;
  } else if (step_count_.defined()) {
    state["step"] = step_count_.item<int64_t>();
  }
  // hyperparameters() is not const because it returns pointers; they are only read here.
  for (const auto& [name, value] : const_cast<Optimizer*>(this)->hyperparameters()) state[name] = *value;
  for (size_t i = 0; i < groups_.size(); ++i) {
    state[group_key(i, "lr_multiple")] = groups_[i].lr_multiple;
    state[group_key(i, "weight_decay")] = groups_[i].weight_decay.value_or(weight_decay_);
  }
  for (const Bucket& bucket : buckets_) {
    const std::vector<std::string> kinds = state_names(groups_[bucket.group]);
    for (size_t i = 0; i < bucket.params.size(); ++i) {
      state[state_key(bucket.names[i], "step")] = bucket.steps[i];
      for (size_t k = 0; k < kinds.size(); ++k) state[state_key(bucket.names[i], kinds[k])] = bucket.state[k][i];
    }
  }
  return state;
}

std::map<std::string, at::Tensor> Optimizer::parameters_of_state() const {
  std::map<std::string, at::Tensor> parameters;
  for (const Bucket& bucket : buckets_) {
    for (const std::string& kind : state_names(groups_[bucket.group])) {
      for (size_t i = 0; i < bucket.params.size(); ++i) {
        parameters[state_key(bucket.names[i], kind)] = bucket.params[i];
      }
    }
  }
  return parameters;
}

/// Checks names, types, shapes and ranges of `state` against this optimizer's own state.
absl::Status Optimizer::check_state(const StateDict& state) const {
  TRAINKIT_ASSIGN_OR_RETURN(const std::string kind, get_state<std::string>(state, "type"));
  if (kind != type()) return bad_state("type", "does not match this optimizer", kind, type());
  TRAINKIT_ASSIGN_OR_RETURN(const int64_t steps, get_state<int64_t>(state, "step"));
  if (steps < 0) return bad_state("step", "is out of range", std::to_string(steps), ">= 0");
  const StateDict own = state_dict();
  for (const auto& [name, mine] : own) {
    const auto saved = state.find(name);
    if (saved == state.end() && name == kInitialLr) continue;
    if (saved == state.end()) return bad_state(name, "is missing from the saved optimizer state");
    TRAINKIT_RETURN_IF_ERROR(check_entry(name, saved->second, mine, steps));
  }
  for (const auto& [name, value] : state) {
    if (!own.contains(name)) return bad_state(name, "is in the saved state but not in this optimizer");
  }
  return absl::OkStatus();
}

absl::Status Optimizer::load_state_dict(const StateDict& state) {
  TRAINKIT_RETURN_IF_ERROR(check_state(state));
  const auto options = hyperparameters();
  std::vector<double> previous;
  for (const auto& [name, value] : options) {
    previous.push_back(*value);
    *value = std::get<double>(state.find(name)->second);
  }
  if (const std::string problems = option_problems(); !problems.empty()) {
    for (size_t i = 0; i < options.size(); ++i) *options[i].second = previous[i];
    return bad_state("options", "are out of range: " + problems);
  }

  const at::NoGradGuard no_grad;
  const auto tensor = [&](const std::string& name) { return std::get<at::Tensor>(state.find(name)->second); };
  for (Bucket& bucket : buckets_) {
    const std::vector<std::string> kinds = state_names(groups_[bucket.group]);
    for (size_t i = 0; i < bucket.params.size(); ++i) {
      bucket.steps[i].copy_(tensor(state_key(bucket.names[i], "step")));
      for (size_t k = 0; k < kinds.size(); ++k) bucket.state[k][i].copy_(tensor(state_key(bucket.names[i], kinds[k])));
    }
  }
  max_step_count_ = std::get<int64_t>(state.find("step")->second);
  skipped_step_count_ = 0;
  if (step_count_.defined()) step_count_.fill_(max_step_count_);
  for (size_t i = 0; i < groups_.size(); ++i) {
    groups_[i].lr_multiple = std::get<double>(state.find(group_key(i, "lr_multiple"))->second);
    groups_[i].weight_decay = std::get<double>(state.find(group_key(i, "weight_decay"))->second);
  }
  lr_ = std::get<double>(state.find("lr")->second);
  if (const auto initial = state.find(kInitialLr); initial != state.end()) {
    initial_lr_ = std::get<double>(initial->second);
  }
  if (device_lrs_.values.defined()) {  // in place: a captured graph reads these addresses
    const DeviceLrs loaded = DeviceLrs::make(groups_, lr_);
    device_lrs_.multiples.copy_(loaded.multiples);
    device_lrs_.values.copy_(loaded.values);
  }
  ++version_;
  return absl::OkStatus();
}

}  // namespace trainkit
