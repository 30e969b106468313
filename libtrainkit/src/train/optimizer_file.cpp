#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/io/weight_file.h"
#include "trainkit/train/checkpoint.h"

namespace trainkit {
namespace {

constexpr const char* kKept[] = {"step", "exp_avg", "exp_avg_sq"};

absl::Status refuse_state(const std::string& path, std::string field, std::string problem, std::string hint = {}) {
  return to_status({.exit_code = ExitCode::kWeights,
                    .id = "weights.optimizer",
                    .where = path,
                    .field = std::move(field),
                    .problem = std::move(problem),
                    .hint = std::move(hint)},
                   absl::StatusCode::kInvalidArgument);
}

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

/// Tensors of one parameter in the file, by key.
using ParameterState = std::map<std::string, at::Tensor>;

/// Finds the container whose "state" holds tensors: "", "optimizer.", ...; nullopt if there is none.
std::optional<std::string> find_container(const TorchFile& file) {
  for (const std::string container : {"", "optimizer.", "optimizer_state_dict.", "optim."}) {
    const std::string start = container + "state.";
    const auto is_state = [&](const TorchEntry& e) {
      return e.name.starts_with(start) && e.name.ends_with(".exp_avg");
    };
    if (std::any_of(file.entries().begin(), file.entries().end(), is_state)) return container;
  }
  return std::nullopt;
}

/// Reads the entries "<start><parameter>.<key>"; names of parameters contain dots themselves.
absl::StatusOr<std::map<std::string, ParameterState>> read_states(const TorchFile& file, const std::string& start) {
  std::map<std::string, ParameterState> states;
  for (const TorchEntry& entry : file.entries()) {
    if (!entry.name.starts_with(start)) continue;
    const size_t dot = entry.name.rfind('.');
    const std::string what = entry.name.substr(dot + 1);
    if (std::find(std::begin(kKept), std::end(kKept), what) == std::end(kKept) || dot < start.size())
      return refuse_state(file.path(), entry.name, "is not part of the state of Adam or AdamW",
                          "amsgrad is not supported");
    TRAINKIT_ASSIGN_OR_RETURN(at::Tensor tensor, file.tensor(entry.name));
    states[entry.name.substr(start.size(), dot - start.size())][what] = tensor.contiguous();
  }
  return states;
}

/// Maps the numbers of parameters to their names, from "param_groups".
std::map<std::string, std::string> parameter_names(const TorchFile& file, const std::string& container) {
  std::map<std::string, std::string> values(file.values().begin(), file.values().end()), names;
  for (const auto& [key, number] : values) {
    const size_t at = key.find(".params.");
    if (!key.starts_with(container + "param_groups.") || at == key.npos) continue;
    const auto name = values.find(key.substr(0, at) + ".param_names." + key.substr(at + sizeof(".params.") - 1));
    if (name != values.end()) names[number] = name->second;
  }
  return names;
}

template <class Value>
void rename_keys(std::map<std::string, Value>& map, const auto& renamed) {
  std::map<std::string, Value> result;
  for (auto& [key, value] : map) result.emplace(renamed(key), std::move(value));
  map = std::move(result);
}

/// Replaces parameter numbers by names and removes the prefix of DataParallel.
absl::Status replace_numbers_by_names(const TorchFile& file, const std::string& container,
                                      std::map<std::string, ParameterState>& states) {
  const auto is_number = [](const auto& state) {
    return std::all_of(state.first.begin(), state.first.end(), [](unsigned char c) { return c >= '0' && c <= '9'; });
  };
  if (std::all_of(states.begin(), states.end(), is_number)) {
    const auto names = parameter_names(file, container);
    for (const auto& [number, state] : states) {
      if (names.contains(number)) continue;
      return refuse_state(file.path(), container + "state." + number, "is a parameter number without a name",
                          "in Python, create the optimizer from model.named_parameters() and save it again");
    }
    rename_keys(states, [&](const std::string& number) { return names.at(number); });
  }
  constexpr std::string_view kDataParallel = "module.";
  const auto has_prefix = [&](const auto& state) { return state.first.starts_with(kDataParallel); };
  if (std::all_of(states.begin(), states.end(), has_prefix))
    rename_keys(states, [&](const std::string& name) { return name.substr(kDataParallel.size()); });
  return absl::OkStatus();
}

}  // namespace

absl::Status save_torch_optimizer(const Fs& fs, const std::string& path, const Optimizer& optimizer) {
  const StateDict state = optimizer.state_dict();
  const std::string type = std::get<std::string>(state.find("type")->second);
  if (type != "adam" && type != "adamw")
    return absl::UnimplementedError(path + ": only the state of Adam and AdamW can be saved, got " + type);
  if (optimizer.is_sharded())
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
      for (const char* what : kKept)
        kept.set(what, std::get<at::Tensor>(state.find("state." + parameter.name + "." + what)->second));
    }
  }
  file.set("state", std::move(parameters));
  file.set("param_groups", std::move(groups));
  return save_torch_value(fs, path, file);
}

absl::Status load_torch_optimizer(Optimizer& optimizer, const std::string& path, const Fs& fs) {
  TRAINKIT_ASSIGN_OR_RETURN(const TorchFile file, TorchFile::open(path, fs));
  const auto container = find_container(file);
  if (!container) return refuse_state(path, {}, "contains no state of Adam or AdamW");
  TRAINKIT_ASSIGN_OR_RETURN(auto states, read_states(file, *container + "state."));
  TRAINKIT_RETURN_IF_ERROR(replace_numbers_by_names(file, *container, states));
  StateDict state = optimizer.state_dict();
  int64_t steps = 0;
  for (const ParamGroup& group : optimizer.param_groups()) {
    for (const NamedParameter& parameter : group.params) {
      const auto found = states.extract(parameter.name);
      if (!found) return refuse_state(path, parameter.name, "has no state in the file");
      for (const char* what : kKept) {
        const auto tensor = found.mapped().find(what);
        if (tensor == found.mapped().end()) return refuse_state(path, parameter.name, std::string("has no ") + what);
        at::Tensor& own = std::get<at::Tensor>(state.find("state." + parameter.name + "." + what)->second);
        const bool fits = tensor->second.sizes() == own.sizes() && tensor->second.is_floating_point();
        if (!fits)
          return refuse_state(path, parameter.name, std::string(what) + " has another shape or is not floating point");
        own = tensor->second.to(own.scalar_type());
      }
      const double step = found.mapped().at("step").item<double>();
      if (!(step >= 0 && step <= 1e15)) return refuse_state(path, parameter.name, "has an invalid step count");
      steps = std::max(steps, static_cast<int64_t>(step));
    }
  }
  if (!states.empty()) return refuse_state(path, states.begin()->first, "is not a parameter of this optimizer");
  state["step"] = steps;
  return annotate(optimizer.load_state_dict(state), path);
}

}  // namespace trainkit
