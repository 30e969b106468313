#include "optim/optimizer_parts.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/io/weight_file.h"
#include "trainkit/train/checkpoint.h"

namespace trainkit {
namespace {

/// Makes one dict of "param_groups", with the keys of the optimizer's class in torch.optim (PyTorch 2.11).
TorchValue group_value(const ParamGroup& group, double lr, double weight_decay, const StateDict& state,
                       const std::string& type) {
  const auto number = [&](const char* name) { return std::get<double>(state.find(name)->second); };
  TorchValue value = TorchValue::dict();
  const bool is_rmsprop = type == "rmsprop", is_adagrad = type == "adagrad";
  value.set("lr", lr);
  value.set("eps", number("eps"));
  value.set("maximize", false);
  if (is_rmsprop) {
    for (const char* name : {"alpha", "momentum"}) value.set(name, number(name));
    value.set("centered", number("centered") != 0);
  } else if (is_adagrad) {
    for (const char* name : {"lr_decay", "initial_accumulator_value"}) value.set(name, number(name));
  } else {
    value.set("betas", TorchValue::tuple({number("beta1"), number("beta2")}));
  }
  if (type != "sparse_adam") {
    value.set("weight_decay", weight_decay);
    value.set("foreach", TorchValue());
    value.set("differentiable", false);
    if (!is_rmsprop) value.set("fused", TorchValue());
    if (!is_adagrad) value.set("capturable", false);
  }
  if (type == "adam" || type == "adamw") {
    value.set("amsgrad", false);
    value.set("decoupled_weight_decay", type == "adamw");
  }
  TorchValue& params = value.set("params", TorchValue::list());
  for (const NamedParameter& parameter : group.params) params.add(parameter.name);
  return value;
}

}  // namespace

absl::Status save_torch_optimizer(const Fs& fs, const std::string& path, const Optimizer& optimizer) {
  const StateDict state = optimizer.state_dict();
  const std::string type = std::get<std::string>(state.find("type")->second);
  const bool is_sparse = type == "sparse_adam";
  if (type != "adam" && type != "adamw" && type != "rmsprop" && type != "adagrad" && !is_sparse)
    return absl::UnimplementedError(
        path + ": only the state of Adam, AdamW, SparseAdam, RMSprop and Adagrad can be saved, got " + type);
  if (detail::is_sharded(optimizer))
    return absl::UnimplementedError(path + ": this rank has only a part of the state; save a checkpoint instead");
  TorchValue file = TorchValue::dict();
  TorchValue parameters = TorchValue::dict(), groups = TorchValue::list();
  const std::vector<std::string> kinds = detail::state_kinds(optimizer);
  const std::vector<double> lrs = optimizer.group_lrs();
  for (size_t i = 0; i < lrs.size(); ++i) {
    const ParamGroup& group = optimizer.param_groups()[i];
    const double decay = std::get<double>(state.find("groups." + std::to_string(i) + ".weight_decay")->second);
    groups.add(group_value(group, lrs[i], decay, state, type));
    for (const NamedParameter& parameter : group.params) {
      TorchValue& kept = parameters.set(parameter.name, TorchValue::dict());
      const auto saved = [&](const std::string& what) {
        return std::get<at::Tensor>(state.find("state." + parameter.name + "." + what)->second);
      };
      // PyTorch's SparseAdam counts in a Python number, as it computes with it.
      kept.set("step", is_sparse ? TorchValue(saved("step").item<int64_t>()) : TorchValue(saved("step")));
      for (const std::string& kind : kinds) kept.set(kind, saved(kind));
    }
  }
  file.set("state", std::move(parameters));
  file.set("param_groups", std::move(groups));
  return save_torch_value(fs, path, file);
}

}  // namespace trainkit
