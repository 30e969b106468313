#include "io/weights/model_weights.h"

#include <algorithm>
#include <set>

#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

constexpr std::string_view kTrainingNames[] = {"optimizer",
                                               "optimizer_state_dict",
                                               "optimizers",
                                               "optimizer_states",
                                               "optim",
                                               "optimizer_state",
                                               "lr_scheduler",
                                               "lr_schedulers",
                                               "scheduler",
                                               "scheduler_state_dict",
                                               "scaler",
                                               "grad_scaler",
                                               "rng",
                                               "rng_state",
                                               "rng_states",
                                               "generator_state",
                                               "cuda_rng_state",
                                               "cuda_rng_states",
                                               "callbacks",
                                               "loops"};

/// Parts of names that wrappers insert before the names of the wrapped module, at any depth.
constexpr std::string_view kInsertedParts[] = {"_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module."};

std::string erase_inserted_parts(std::string name) {
  for (const std::string_view part : kInsertedParts) {
    for (size_t at = name.find(part); at != name.npos; at = name.find(part, at)) {
      if (at > 0 && name[at - 1] != '.') {
        ++at;
      } else {
        name.erase(at, part.size());
      }
    }
  }
  return name;
}

bool all_start_with(const std::vector<std::string>& names, std::string_view prefix) {
  return !names.empty() &&
         std::all_of(names.begin(), names.end(), [&](const std::string& name) { return name.starts_with(prefix); });
}

}  // namespace

bool is_training_name(std::string_view name) {
  const std::string_view first = name.substr(0, name.find('.'));
  return std::find(std::begin(kTrainingNames), std::end(kTrainingNames), first) != std::end(kTrainingNames);
}

absl::StatusOr<ModelWeights> read_model_weights(const WeightFile& file, std::string prefix) {
  StoredTensors stored;
  TRAINKIT_ASSIGN_OR_RETURN(ModelWeights weights, list_model_weights(file, stored, std::move(prefix)));
  TRAINKIT_RETURN_IF_ERROR(stored.read_all(weights.tensors));
  return weights;
}

absl::StatusOr<ModelWeights> list_model_weights(const WeightFile& file, StoredTensors& stored, std::string prefix) {
  if (prefix.empty()) {
    TRAINKIT_ASSIGN_OR_RETURN(prefix, file.state_dict_prefix());
  }
  TRAINKIT_ASSIGN_OR_RETURN(NamedTensors tensors, stored.list(file, prefix));
  ModelWeights weights{std::move(tensors)};
  if (file.format() == "safetensors") return weights;  // its values are metadata
  std::set<std::string> left_out;
  const auto leave_out = [&](const std::string& name) {
    const bool is_read = prefix.empty() ? false : name == prefix || name.starts_with(prefix + ".");
    std::string first = name.substr(0, name.find('.'));
    if (!is_read && left_out.insert(first).second) weights.left_out.push_back(std::move(first));
  };
  if (prefix.empty()) {
    std::erase_if(weights.tensors, [&](const auto& named) {
      const bool is_other = named.first.find('.') != named.first.npos && is_training_name(named.first);
      if (is_other) leave_out(named.first);
      return is_other;
    });
  } else {
    for (const WeightEntry& entry : file.entries()) leave_out(entry.name);
  }
  for (const auto& [name, text] : file.values()) leave_out(name);
  return weights;
}

std::string describe_left_out(const std::string& path, const std::vector<std::string>& left_out) {
  constexpr size_t kNamed = 8;
  std::string names;
  for (size_t i = 0; i < std::min(left_out.size(), kNamed); ++i)
    names += (i == 0 ? "" : ", ") + escape_text(left_out[i], 60);
  if (left_out.size() > kNamed) names += " and " + std::to_string(left_out.size() - kNamed) + " more";
  return escape_text(path, 4096) + " also has " + names + ", which were left out";
}

std::vector<std::string> without_wrappers(std::vector<std::string> names,
                                          const std::function<bool(const std::string&)>& is_known) {
  for (std::string& name : names) {
    if (!is_known(name)) name = erase_inserted_parts(std::move(name));
  }
  const auto count_known = [&](const std::vector<std::string>& some) {
    return std::count_if(some.begin(), some.end(), is_known);
  };
  std::vector<std::string> best = names;
  int64_t most = count_known(best);
  for (bool only_module = true;;) {
    const std::string_view prefix = all_start_with(names, "module.") ? "module." : "model.";
    if (!all_start_with(names, prefix)) return best;
    only_module = only_module && prefix == "module.";
    for (std::string& name : names) name.erase(0, prefix.size());
    const int64_t known = count_known(names);
    if (known > most || (known == most && only_module)) {
      best = names;
      most = known;
    }
  }
}

void strip_wrappers(ModelWeights& weights, const std::function<bool(const std::string&)>& is_known) {
  // torch.optim.swa_utils.AveragedModel counts its updates next to "module.".
  constexpr std::string_view kAverages = "n_averaged";
  const auto is_count = [&](const auto& named) { return named.first == kAverages; };
  const bool averaged =
      !is_known(std::string(kAverages)) && std::any_of(weights.tensors.begin(), weights.tensors.end(), is_count) &&
      std::all_of(weights.tensors.begin(), weights.tensors.end(),
                  [&](const auto& named) { return is_count(named) || named.first.starts_with("module."); });
  if (averaged) {
    std::erase_if(weights.tensors, is_count);
    weights.left_out.emplace_back(kAverages);
  }
  std::vector<std::string> names;
  for (const auto& named : weights.tensors) names.push_back(named.first);
  names = without_wrappers(std::move(names), is_known);
  for (size_t i = 0; i < names.size(); ++i) weights.tensors[i].first = std::move(names[i]);
}

}  // namespace trainkit::detail

namespace trainkit {

std::string WeightFile::left_out_note() const {
  detail::StoredTensors unread;
  const auto weights = detail::list_model_weights(*this, unread);
  return weights.ok() && !weights->left_out.empty() ? detail::describe_left_out(path_, weights->left_out) : "";
}

}  // namespace trainkit
