// The state that an Optimizer saves and loads.
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "core/base/option_problems.h"
#include "optim/optimizer_parts.h"
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

/// Checks names, types, shapes and ranges of `state` against `own`, the optimizer's.
absl::Status check_state(const StateDict& state, const StateDict& own) {
  const std::string type = std::get<std::string>(own.find("type")->second);
  TRAINKIT_ASSIGN_OR_RETURN(const std::string kind, get_state<std::string>(state, "type"));
  if (kind != type) return bad_state("type", "does not match this optimizer", kind, type);
  TRAINKIT_ASSIGN_OR_RETURN(const int64_t steps, get_state<int64_t>(state, "step"));
  if (steps < 0) return bad_state("step", "is out of range", std::to_string(steps), ">= 0");
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

}  // namespace

StateDict Optimizer::state_dict() const {
  StateDict state{{"type", std::string(type())}, {"lr", lr()}, {kInitialLr, initial_lr()}, {"step", int64_t{0}}};
  if (const auto known = parts_->counts.known()) {
    state["step"] = *known;
  } else if (step_count().defined()) {
    state["step"] = step_count().item<int64_t>();
  }
  // hyperparameters() is not const because it returns pointers; they are only read here.
  for (const auto& [name, value] : const_cast<Optimizer*>(this)->hyperparameters()) state[name] = *value;
  for (size_t i = 0; i < param_groups().size(); ++i) {
    state[group_key(i, "lr_multiple")] = param_groups()[i].lr_multiple;
    state[group_key(i, "weight_decay")] = param_groups()[i].weight_decay.value_or(parts_->weight_decay);
  }
  for (const detail::ParameterBucket& bucket : parts_->parameters.buckets) {
    for (size_t i = 0; i < bucket.params.size(); ++i) {
      state[state_key(bucket.names[i], "step")] = bucket.steps[i];
      for (size_t k = 0; k < bucket.kinds.size(); ++k) {
        state[state_key(bucket.names[i], bucket.kinds[k])] = bucket.state[k][i];
      }
    }
  }
  return state;
}

absl::Status Optimizer::load_state_dict(const StateDict& state) {
  return detail::OptimizerParts::load(*this, state,
                                      {.read = [](const at::Tensor& tensor) { return tensor; },
                                       .copy =
                                           [](const at::Tensor& from, const at::Tensor& to) {
                                             to.copy_(from);
                                             return absl::OkStatus();
                                           }});
}

absl::Status detail::OptimizerParts::load(Optimizer& optimizer, StateDict state, const StateTensors& tensors) {
  for (auto& [name, value] : state) {  // the counts of steps are checked
    auto* tensor = std::get_if<at::Tensor>(&value);
    if (!tensor || !tensor->defined() || tensor->numel() != 1) continue;
    TRAINKIT_ASSIGN_OR_RETURN(*tensor, tensors.read(*tensor));
  }
  TRAINKIT_RETURN_IF_ERROR(check_state(state, optimizer.state_dict()));
  const auto options = optimizer.hyperparameters();
  std::vector<double> previous;
  for (const auto& [name, value] : options) {
    previous.push_back(*value);
    *value = std::get<double>(state.find(name)->second);
  }
  if (const std::string problems = optimizer.option_problems(); !problems.empty()) {
    for (size_t i = 0; i < options.size(); ++i) *options[i].second = previous[i];
    return bad_state("options", "are out of range: " + problems);
  }

  const at::NoGradGuard no_grad;
  OptimizerParts& own = of(optimizer);
  const auto tensor = [&](const std::string& name) { return std::get<at::Tensor>(state.find(name)->second); };
  const auto number = [&](const std::string& name) { return std::get<double>(state.find(name)->second); };
  for (detail::ParameterBucket& bucket : own.parameters.buckets) {
    for (size_t i = 0; i < bucket.params.size(); ++i) {
      TRAINKIT_RETURN_IF_ERROR(tensors.copy(tensor(state_key(bucket.names[i], "step")), bucket.steps[i]));
      for (size_t k = 0; k < bucket.kinds.size(); ++k) {
        TRAINKIT_RETURN_IF_ERROR(tensors.copy(tensor(state_key(bucket.names[i], bucket.kinds[k])), bucket.state[k][i]));
      }
    }
  }
  own.counts.set_total(std::get<int64_t>(state.find("step")->second));
  std::vector<ParamGroup>& groups = own.parameters.groups;
  for (size_t i = 0; i < groups.size(); ++i) {
    groups[i].lr_multiple = number(group_key(i, "lr_multiple"));
    groups[i].weight_decay = number(group_key(i, "weight_decay"));
  }
  own.rates.load(number("lr"), state.contains(kInitialLr) ? number(kInitialLr) : optimizer.initial_lr(), groups);
  ++own.version;
  return absl::OkStatus();
}

std::vector<std::string> detail::state_kinds(const Optimizer& optimizer) {
  const auto& buckets = OptimizerParts::of(optimizer).parameters.buckets;
  return buckets.empty() ? std::vector<std::string>() : buckets.front().kinds;
}

std::map<std::string, at::Tensor> detail::parameters_of_state(const Optimizer& optimizer) {
  std::map<std::string, at::Tensor> parameters;
  for (const ParameterBucket& bucket : OptimizerParts::of(optimizer).parameters.buckets) {
    for (const std::string& kind : bucket.kinds) {
      for (size_t i = 0; i < bucket.params.size(); ++i) {
        parameters[state_key(bucket.names[i], kind)] = bucket.params[i];
      }
    }
  }
  return parameters;
}

}  // namespace trainkit
