#include "optim/optimizer_parts.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/io/weight_file.h"
#include "trainkit/train/checkpoint.h"

namespace trainkit {
namespace {

constexpr const char* kSavedState[] = {"step", "exp_avg", "exp_avg_sq"};

/// Makes one dict of "param_groups", with the keys of torch.optim.AdamW (PyTorch 2.11).
TorchValue group_value(const ParamGroup& group, double lr, double weight_decay, const StateDict& state,
                       bool decoupled) {
  const auto number = [&](const char* name) { return std::get<double>(state.find(name)->second); };
  TorchValue value = TorchValue::dict();
  value.set("lr", lr);
  value.set("betas", TorchValue::tuple({number("beta1"), number("beta2")}));
  value.set("eps", number("eps"));
  value.set("weight_decay", weight_decay);
  for (const char* off : {"amsgrad", "maximize", "capturable", "differentiable"}) value.set(off, false);
  for (const char* unset : {"foreach", "fused"}) value.set(unset, TorchValue());
  value.set("decoupled_weight_decay", decoupled);
  TorchValue& params = value.set("params", TorchValue::list());
  for (const NamedParameter& parameter : group.params) params.add(parameter.name);
  return value;
}

}  // namespace

absl::Status save_torch_optimizer(const Fs& fs, const std::string& path, const Optimizer& optimizer) {
  const StateDict state = optimizer.state_dict();
  const std::string type = std::get<std::string>(state.find("type")->second);
  if (type != "adam" && type != "adamw")
    return absl::UnimplementedError(path + ": only the state of Adam and AdamW can be saved, got " + type);
  if (detail::is_sharded(optimizer))
    return absl::UnimplementedError(path + ": this rank has only a part of the state; save a checkpoint instead");
  TorchValue file = TorchValue::dict();
  TorchValue parameters = TorchValue::dict(), groups = TorchValue::list();
  const std::vector<double> lrs = optimizer.group_lrs();
  for (size_t i = 0; i < lrs.size(); ++i) {
    const ParamGroup& group = optimizer.param_groups()[i];
    const double decay = std::get<double>(state.find("groups." + std::to_string(i) + ".weight_decay")->second);
    groups.add(group_value(group, lrs[i], decay, state, type == "adamw"));
    for (const NamedParameter& parameter : group.params) {
      TorchValue& kept = parameters.set(parameter.name, TorchValue::dict());
      for (const char* what : kSavedState)
        kept.set(what, std::get<at::Tensor>(state.find("state." + parameter.name + "." + what)->second));
    }
  }
  file.set("state", std::move(parameters));
  file.set("param_groups", std::move(groups));
  return save_torch_value(fs, path, file);
}

}  // namespace trainkit
