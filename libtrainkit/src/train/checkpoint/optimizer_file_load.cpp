#include <absl/strings/numbers.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "io/weights/model_weights.h"
#include "optim/optimizer_parts.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/io/weight_file.h"
#include "trainkit/train/checkpoint.h"

namespace trainkit {
namespace {

constexpr char kStep[] = "step";
constexpr char kSparseAdam[] = "SparseAdam";
constexpr char kLoadable[] = "Adam, AdamW, SparseAdam, RMSprop or Adagrad";

/// A setting of a group, or a key of a parameter's state, that only this algorithm of torch.optim has (PyTorch 2.11).
struct AlgorithmSign {
  const char* name;
  const char* setting;
  const char* state;
};

constexpr AlgorithmSign kSigns[] = {
    {"NAdam", "momentum_decay", "mu_product"},
    {"Adamax", nullptr, "exp_inf"},
    {"Adagrad", "lr_decay", "sum"},
    {"Adadelta", "rho", "acc_delta"},
    {"RMSprop", "centered", "square_avg"},
    {"ASGD", "lambd", "ax"},
    {"Rprop", "etas.0", "step_size"},
    {"LBFGS", "tolerance_grad", "func_evals"},
    {"Adafactor", "beta2_decay", "row_var"},
    {"Muon", "ns_steps", nullptr},
    {"SGD", "dampening", "momentum_buffer"},
    {"AdamW of transformers", "correct_bias", nullptr},
    {"FusedAdam of apex", "bias_correction", nullptr},
};

/// Tensors of one parameter in the file, by key.
using ParameterState = std::map<std::string, at::Tensor>;
/// Settings of a group as text: {"betas.0", "0.9"}. Those that are tensors have no text.
using GroupSettings = std::map<std::string, std::string>;

/// The state_dict() of an optimizer in a file.
struct SavedOptimizer {
  std::string path;
  /// "", "optimizer.", "optimizer_states.0.", ...
  std::string container;
  std::map<std::string, GroupSettings> groups = {};
  std::map<std::string, ParameterState> states = {};
};

absl::Status refuse_state(const std::string& path, std::string field, std::string problem, std::string got = {},
                          std::string expected = {}, std::string hint = {}) {
  return to_status({.exit_code = ExitCode::kWeights,
                    .id = "weights.optimizer",
                    .where = path,
                    .field = std::move(field),
                    .problem = std::move(problem),
                    .got = std::move(got),
                    .expected = std::move(expected),
                    .hint = std::move(hint)},
                   absl::StatusCode::kInvalidArgument);
}

/// Returns the text before the component `key` ("param_groups.") of a name; nullopt if it has none.
std::optional<std::string> text_before(const std::string& name, std::string_view key) {
  for (size_t at = name.find(key); at != name.npos; at = name.find(key, at + 1)) {
    if (at == 0 || name[at - 1] == '.') return name.substr(0, at);
  }
  return std::nullopt;
}

/// Finds the container of the only optimizer in the file, or of the one with a usual name. @param kind a tensor of its
/// state.
absl::StatusOr<std::string> find_optimizer(const TorchFile& file, const std::string& kind) {
  std::set<std::string> found;
  for (const auto& [name, value] : file.values()) {
    if (auto container = text_before(name, "param_groups.")) found.insert(*std::move(container));
  }
  for (const TorchEntry& entry : file.entries()) {
    auto container = text_before(entry.name, "state.");
    const bool is_state = container && entry.name.ends_with("." + kind);
    if (is_state && (found.empty() || found.contains(*container))) found.insert(*std::move(container));
  }
  if (found.size() == 1) return *found.begin();
  for (const char* usual : {"", "optimizer.", "optimizer_state_dict.", "optim."}) {
    if (found.contains(usual)) return usual;
  }
  if (found.empty()) return refuse_state(file.path(), {}, std::string("contains no state of ") + kLoadable);
  return refuse_state(file.path(), {}, "contains the states of several optimizers",
                      fmt::format("{}", fmt::join(found, ", ")), "one",
                      "in Python, save the state of one: torch.save(optimizer.state_dict(), path)");
}

/// Reads the entries "<container>state.<parameter>.<key>"; names of parameters contain dots themselves.
absl::Status read_states(const TorchFile& file, SavedOptimizer& saved) {
  const std::string start = saved.container + "state.";
  const auto split = [&](const std::string& name) -> std::optional<std::pair<std::string, std::string>> {
    const size_t dot = name.rfind('.');
    if (!name.starts_with(start) || dot < start.size() || dot == name.npos) return std::nullopt;
    return std::pair(name.substr(start.size(), dot - start.size()), name.substr(dot + 1));
  };
  for (const TorchEntry& entry : file.entries()) {
    const auto key = split(entry.name);
    if (!key) continue;
    TRAINKIT_ASSIGN_OR_RETURN(const at::Tensor tensor, file.tensor(entry.name));
    saved.states[key->first][key->second] = tensor.contiguous();
  }
  for (const auto& [name, text] : file.values()) {  // PyTorch before 1.12 counts the steps in a Python number
    const auto key = split(name);
    double number = 0;
    if (key && absl::SimpleAtod(text, &number)) {
      saved.states[key->first][key->second] = at::scalar_tensor(number, at::kDouble);
    }
  }
  return absl::OkStatus();
}

bool is_number(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) { return c >= '0' && c <= '9'; });
}

/// Reads the settings "<container>param_groups.<group>.<key>" and "...<key>.<number>". A group is a number, or in
/// flattened files of torch.distributed.checkpoint the name of a parameter.
void read_groups(const TorchFile& file, SavedOptimizer& saved) {
  const std::string start = saved.container + "param_groups.";
  const auto add = [&](const std::string& name, const std::string& text) {
    size_t dot = name.rfind('.');
    if (dot != name.npos && is_number(std::string_view(name).substr(dot + 1))) dot = name.rfind('.', dot - 1);
    if (!name.starts_with(start) || dot == name.npos || dot < start.size()) return;
    saved.groups[name.substr(start.size(), dot - start.size())][name.substr(dot + 1)] = text;
  };
  for (const auto& [name, text] : file.values()) add(name, text);
  for (const TorchEntry& entry : file.entries()) add(entry.name, "");
}

/// Returns the name of the algorithm that wrote the state; "" for Adam and AdamW, and for a state without settings.
std::string algorithm_of(const SavedOptimizer& saved) {
  const auto has_setting = [&](const std::string& key) {
    return std::any_of(saved.groups.begin(), saved.groups.end(), [&](const auto& g) { return g.second.contains(key); });
  };
  const auto has_state = [&](const std::string& key) {
    return std::any_of(saved.states.begin(), saved.states.end(), [&](const auto& s) { return s.second.contains(key); });
  };
  for (const AlgorithmSign& sign : kSigns) {
    if ((sign.setting && has_setting(sign.setting)) || (sign.state && has_state(sign.state))) return sign.name;
  }
  if (saved.groups.empty() || has_setting("amsgrad")) return "";
  if (!has_setting("betas.0") && !has_setting("betas")) return "another algorithm";
  if (!has_setting("weight_decay")) return kSparseAdam;
  return has_setting("decoupled_weight_decay") || !saved.states.empty() ? "RAdam" : "RAdam or Adamax";
}

/// Checks the settings without which the saved means would be those of another gradient.
absl::Status check_settings(const SavedOptimizer& saved, const StateDict& own) {
  const bool own_decouples = std::get<std::string>(own.find("type")->second) == "adamw";
  for (const auto& group : saved.groups) {
    const auto& number = group.first;
    const auto& settings = group.second;
    const auto refuse = [&](const std::string& key, const std::string& problem, const std::string& got,
                            const std::string& expected, const std::string& hint = "") {
      return refuse_state(saved.path, fmt::format("{}param_groups.{}.{}", saved.container, number, key), problem, got,
                          expected, hint);
    };
    const auto text = [&](const std::string& key) {
      const auto found = settings.find(key);
      return found == settings.end() ? std::string() : found->second;
    };
    for (const char* key : {"amsgrad", "maximize"}) {
      if (text(key) == "True" || text(key) == "1") return refuse(key, "is not supported", text(key), "False");
    }
    for (const auto& [key, name] : {std::pair("betas.0", "beta1"), std::pair("betas.1", "beta2")}) {
      double beta = 0;
      if (!own.contains(name)) continue;
      const double wanted = std::get<double>(own.find(name)->second);
      if (!absl::SimpleAtod(text(key), &beta) || std::abs(beta - wanted) <= 1e-12) continue;
      return refuse(key, "differs from this optimizer's, so that the saved means would be corrected wrongly", text(key),
                    fmt::format("{}", wanted), "make the optimizer with the betas of the file");
    }
    const std::string decouples = text("decoupled_weight_decay");
    if (decouples.empty() || (decouples == "True") == own_decouples) continue;
    // The means of the coupled one contain its decay.
    double decay = 0;
    if (decouples == "True") {
      for (const auto& [key, value] : own) {
        if (key.ends_with(".weight_decay")) decay = std::max(decay, std::abs(std::get<double>(value)));
      }
    } else if (!absl::SimpleAtod(text("weight_decay"), &decay)) {
      continue;
    }
    if (decay == 0) continue;
    return refuse("decoupled_weight_decay", "differs from this optimizer's, with a weight decay", decouples,
                  own_decouples ? "True, as in AdamW" : "False, as in Adam",
                  own_decouples ? "load it into Adam" : "load it into AdamW");
  }
  return absl::OkStatus();
}

template <class Value>
void rename_keys(std::map<std::string, Value>& map, const std::map<std::string, std::string>& names) {
  std::map<std::string, Value> result;
  for (auto& [key, value] : map) result.emplace(names.at(key), std::move(value));
  map = std::move(result);
}

/// Replaces parameter numbers by names and removes the prefixes of wrappers. Returns the names of all parameters of the
/// saved optimizer, those without a state included.
absl::StatusOr<std::set<std::string>> name_parameters(SavedOptimizer& saved, const std::set<std::string>& own) {
  std::map<std::string, std::string> names;  // by number, or by themselves
  constexpr std::string_view kParams = "params.";
  for (const auto& [group, settings] : saved.groups) {
    if (!is_number(group)) names[group] = group;
    for (const auto& [key, parameter] : settings) {
      if (!key.starts_with(kParams)) continue;
      const auto name = settings.find("param_names." + key.substr(kParams.size()));
      if (name != settings.end()) {
        names[parameter] = name->second;
      } else if (!is_number(parameter)) {
        names[parameter] = parameter;
      }
    }
  }
  for (const auto& [parameter, state] : saved.states) {
    if (names.contains(parameter)) continue;
    if (is_number(parameter)) {
      return refuse_state(saved.path, saved.container + "state." + parameter, "is a parameter number without a name",
                          "", "", "in Python, create the optimizer from model.named_parameters() and save it again");
    }
    names[parameter] = parameter;
  }
  std::vector<std::string> plain;
  plain.reserve(names.size());
  for (const auto& [key, name] : names) plain.push_back(name);
  plain = detail::without_wrappers(std::move(plain), [&](const std::string& name) { return own.contains(name); });
  std::set<std::string> listed(plain.begin(), plain.end());
  if (listed.size() < plain.size()) return refuse_state(saved.path, {}, "names a parameter twice");
  auto next = plain.begin();
  for (auto& [key, name] : names) name = *next++;
  rename_keys(saved.states, names);
  return listed;
}

/// Copies the state of one parameter, step count and `kinds`; its first values for one that never had a gradient.
/// Returns its number of steps.
absl::StatusOr<double> take_state(const SavedOptimizer& saved, const std::string& name,
                                  const std::vector<std::string>& kinds, StateDict& state) {
  const auto found = saved.states.find(name);
  const auto initial = state.find("initial_accumulator_value");  // Adagrad's
  double steps = 0;
  std::vector<std::string> all = {kStep};
  all.insert(all.end(), kinds.begin(), kinds.end());
  for (const std::string& what : all) {
    at::Tensor& own = std::get<at::Tensor>(state.find("state." + name + "." + what)->second);
    if (found == saved.states.end()) {
      const bool is_zero = what == kStep || initial == state.end();
      own = at::full_like(own, is_zero ? 0.0 : std::get<double>(initial->second));
      continue;
    }
    const auto tensor = found->second.find(what);
    if (tensor == found->second.end()) return refuse_state(saved.path, name, "has no " + what);
    const at::Tensor& value = tensor->second;
    if (what == kStep) {
      steps = value.numel() == 1 && !value.is_complex() ? value.item<double>() : -1;
      if (!(steps >= 0 && steps <= 1e15)) return refuse_state(saved.path, name, "has an invalid step count");
      own = at::full_like(own, steps);
      continue;
    }
    if (value.sizes() != own.sizes() || !value.is_floating_point())
      return refuse_state(saved.path, name, what + " has another shape or is not floating point");
    own = value.to(own.scalar_type());
  }
  return steps;
}

}  // namespace

absl::Status load_torch_optimizer(Optimizer& optimizer, const std::string& path, const Fs& fs) {
  StateDict state = optimizer.state_dict();
  const std::string type = std::get<std::string>(state.find("type")->second);
  // Adam and AdamW have no sign: their settings decide.
  const std::map<std::string, std::string> algorithms = {
      {"adam", ""}, {"adamw", ""}, {"sparse_adam", kSparseAdam}, {"rmsprop", "RMSprop"}, {"adagrad", "Adagrad"}};
  const auto own_algorithm = algorithms.find(type);
  if (own_algorithm == algorithms.end())
    return absl::UnimplementedError(path + ": only the state of " + kLoadable + " can be loaded, not into " + type);
  if (detail::is_sharded(optimizer))
    return absl::UnimplementedError(path +
                                    ": this rank has only a part of the state; resume from a checkpoint instead");
  const std::vector<std::string> kinds = detail::state_kinds(optimizer);
  if (kinds.empty()) return absl::FailedPreconditionError(path + ": the optimizer has no parameters");
  TRAINKIT_ASSIGN_OR_RETURN(const TorchFile file, TorchFile::open(path, fs));
  TRAINKIT_ASSIGN_OR_RETURN(const std::string container, find_optimizer(file, kinds.front()));
  SavedOptimizer saved{.path = path, .container = container};
  read_groups(file, saved);
  TRAINKIT_RETURN_IF_ERROR(read_states(file, saved));
  const std::string algorithm = algorithm_of(saved);
  const std::string& wanted = own_algorithm->second;
  const bool is_own = algorithm == wanted || (saved.groups.empty() && algorithm.empty() && wanted == kSparseAdam);
  if (!is_own) {
    return refuse_state(path, container + "state", "is of another algorithm",
                        algorithm.empty() ? "Adam or AdamW" : algorithm, wanted.empty() ? "Adam or AdamW" : wanted);
  }
  TRAINKIT_RETURN_IF_ERROR(check_settings(saved, state));
  for (const auto& [parameter, values] : saved.states) {
    for (const auto& [key, value] : values) {
      if (key != kStep && std::find(kinds.begin(), kinds.end(), key) == kinds.end())
        return refuse_state(path, fmt::format("{}state.{}.{}", container, parameter, key),
                            "is not part of this optimizer's state");
    }
  }
  std::set<std::string> own;
  for (const ParamGroup& group : optimizer.param_groups()) {
    for (const NamedParameter& parameter : group.params) own.insert(parameter.name);
  }
  TRAINKIT_ASSIGN_OR_RETURN(const std::set<std::string> listed, name_parameters(saved, own));
  double steps = 0;
  for (const std::string& name : own) {
    if (!listed.contains(name)) return refuse_state(path, name, "has no state in the file");
    TRAINKIT_ASSIGN_OR_RETURN(const double taken, take_state(saved, name, kinds, state));
    steps = std::max(steps, taken);
  }
  for (const auto& [name, values] : saved.states) {
    if (!own.contains(name)) return refuse_state(path, name, "is not a parameter of this optimizer");
  }
  state["step"] = static_cast<int64_t>(steps);
  return annotate(optimizer.load_state_dict(state), path);
}

}  // namespace trainkit
