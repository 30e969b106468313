#include "trainkit/nn/lora.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/base/option_problems.h"
#include "nn/models/lora_layers.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

/// Larger than the width of any layer.
constexpr int64_t kMaxRank = 1 << 20;

Error usage_error(std::string field, std::string problem) {
  return {.exit_code = ExitCode::kUsage, .id = "cli.value", .field = std::move(field), .problem = std::move(problem)};
}

bool is_meant(std::string_view name, std::string_view target) {
  return name == target || (name.ends_with(target) && name[name.size() - target.size() - 1] == '.');
}

/// Suggests a layer for a target that matches none, from the last parts of the adaptable layers' names.
std::string nearest_layer(const torch::nn::Module& model, const std::string& target) {
  std::vector<std::string> names;
  for (const auto& item : model.named_modules()) {
    if (item.value()->as<AdaptableImpl>()) names.push_back(item.key().substr(item.key().rfind('.') + 1));
  }
  return nearest_name(target, names);
}

}  // namespace

namespace detail {

absl::StatusOr<LoRALayers> find_lora_targets(torch::nn::Module& model, const LoRAConfig& config) {
  LoRALayers layers;
  std::vector<bool> found(config.targets.size());
  for (const auto& item : model.named_modules(std::string(), /*include_self=*/false)) {
    bool meant = false;
    for (size_t i = 0; i < config.targets.size(); ++i) {
      if (!is_meant(item.key(), config.targets[i])) continue;
      meant = found[i] = true;
    }
    if (!meant) continue;
    auto* layer = item.value()->as<AdaptableImpl>();
    if (!layer) {
      Error error = usage_error(item.key(), "cannot carry an adapter");
      error.got = item.value()->name();
      error.expected = "trainkit::Linear or Conv1D";
      return to_status(error);
    }
    const bool is_exported = !layer->as<LinearImpl>() && !layer->as<Conv1DImpl>();
    if (config.dropout > 0 && is_exported) {
      return to_status(usage_error(item.key(), "the adapter of an exported layer has no dropout"));
    }
    layers.emplace_back(item.key(), layer);
  }
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i]) continue;
    Error error = usage_error("targets", fmt::format("no layer is called '{}'", escape_text(config.targets[i])));
    if (const std::string near = nearest_layer(model, config.targets[i]); !near.empty())
      error.hint = "did you mean '" + near + "'?";
    return to_status(error);
  }
  return layers;
}

void add_adapters(const LoRALayers& layers, const LoRAConfig& config) {
  for (const auto& [name, layer] : layers) TORCH_CHECK(!layer->has_adapter(), name, " already has an adapter");
  const auto rank = static_cast<double>(config.rank);
  const double scaling = config.alpha / (config.rank_stabilized ? std::sqrt(rank) : rank);
  for (const auto& [name, layer] : layers) layer->add_adapter(config.rank, scaling, config.dropout);
}

NamedTensors adapter_tensors(const torch::nn::Module& model) {
  NamedTensors tensors;
  for (const auto& item : model.named_parameters()) {
    if (is_adapter(item.key())) tensors.emplace_back(item.key(), item.value());
  }
  return tensors;
}

bool is_adapter(std::string_view name) { return name.ends_with(".lora_A.weight") || name.ends_with(".lora_B.weight"); }

void train_adapters_alone(torch::nn::Module& model) {
  for (auto& item : model.named_parameters()) item.value().set_requires_grad(is_adapter(item.key()));
}

}  // namespace detail

absl::Status validate(const LoRAConfig& config) {
  detail::OptionProblems problems;
  problems
      .require(config.rank >= 1 && config.rank <= kMaxRank, "rank", fmt::format("in [1, {}]", kMaxRank), config.rank)
      .require(std::isfinite(config.alpha), "alpha", "a number", config.alpha)
      .require(config.dropout >= 0.0 && config.dropout < 1.0, "dropout", "in [0, 1)", config.dropout)
      .require(!config.targets.empty(), "targets must contain a layer name")
      .require(std::count(config.targets.begin(), config.targets.end(), "") == 0, "a target must not be empty");
  return problems.empty() ? absl::OkStatus() : to_status(usage_error({}, problems.text()));
}

absl::Status apply_lora(torch::nn::Module& model, const LoRAConfig& config) {
  TRAINKIT_RETURN_IF_ERROR(validate(config));
  TRAINKIT_ASSIGN_OR_RETURN(const detail::LoRALayers layers, detail::find_lora_targets(model, config));
  detail::add_adapters(layers, config);
  detail::train_adapters_alone(model);
  return absl::OkStatus();
}

namespace {

template <class Action>
void for_each_adaptable(torch::nn::Module& model, Action action) {
  for (const auto& part : model.modules()) {
    if (auto* layer = part->as<AdaptableImpl>()) action(*layer);
  }
}

}  // namespace

void merge_lora(torch::nn::Module& model) {
  for_each_adaptable(model, [](AdaptableImpl& layer) { layer.merge_adapter(); });
}

void unmerge_lora(torch::nn::Module& model) {
  for_each_adaptable(model, [](AdaptableImpl& layer) { layer.unmerge_adapter(); });
}

void remove_lora(torch::nn::Module& model) {
  for_each_adaptable(model, [](AdaptableImpl& layer) { layer.remove_adapter(); });
}

}  // namespace trainkit
