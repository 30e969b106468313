// Adapter files in peft's format: adapter_config.json and adapter_model.safetensors.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "io/weights/model_weights.h"
#include "nn/models/config_fields.h"
#include "nn/models/lora_layers.h"
#include "trainkit/core/status.h"
#include "trainkit/io/weight_file.h"

namespace trainkit {
namespace {

using detail::config_error;

constexpr char kAdapterConfigName[] = "adapter_config.json";
constexpr char kAdapterSafetensorsName[] = "adapter_model.safetensors";
constexpr char kAdapterTorchName[] = "adapter_model.bin";
constexpr std::string_view kPeftPrefix = "base_model.model.";
/// Name prefix in files of models with a head (GPT2LMHeadModel).
constexpr std::string_view kAdapterBodyPrefix = "transformer.";

/// Fields that are read below or do not affect the adapters' output.
constexpr std::string_view kKnownFields[] = {"alpha_pattern",
                                             "auto_mapping",
                                             "base_model_name_or_path",
                                             "bias",
                                             "fan_in_fan_out",
                                             "inference_mode",
                                             "init_lora_weights",
                                             "lora_alpha",
                                             "lora_dropout",
                                             "megatron_core",
                                             "peft_type",
                                             "peft_version",
                                             "qalora_group_size",
                                             "r",
                                             "revision",
                                             "runtime_config",
                                             "target_modules",
                                             "task_type",
                                             "use_rslora",
                                             "ensure_weight_tying",
                                             "eva_config",
                                             "loftq_config",
                                             "corda_config",
                                             "lora_ga_config"};

/// Returns whether the value disables a field of peft.
bool is_off(const nlohmann::json& value) {
  return value.is_null() || value == false || ((value.is_object() || value.is_array()) && value.empty());
}

absl::Status refuse_unknown(const nlohmann::json& json, const std::string& path) {
  for (const auto& [name, value] : json.items()) {
    const bool known = std::find(std::begin(kKnownFields), std::end(kKnownFields), name) != std::end(kKnownFields);
    if (known && name != "alpha_pattern") continue;
    if (!is_off(value)) {
      return to_status(config_error(path, escape_text(name, 60), "is not supported: it may change what is computed",
                                    detail::short_text(value), "null, false or empty"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> targets_of(const nlohmann::json& json, const std::string& path) {
  const auto at = json.find("target_modules");
  std::vector<std::string> targets;
  const bool is_list = at != json.end() && at->is_array() &&
                       std::all_of(at->begin(), at->end(), [](const auto& name) { return name.is_string(); });
  if (!is_list) {
    return to_status(config_error(path, "target_modules", "is not supported",
                                  at == json.end() ? "nothing" : detail::short_text(*at), "a list of names"));
  }
  for (const auto& name : *at) targets.push_back(name.get<std::string>());
  return targets;
}

std::string config_json(const LoRAConfig& config, bool fan_in_fan_out) {
  const bool whole = std::nearbyint(config.alpha) == config.alpha && std::abs(config.alpha) < 1e15;
  nlohmann::ordered_json json = {{"base_model_name_or_path", nullptr},
                                 {"bias", "none"},
                                 {"fan_in_fan_out", fan_in_fan_out},
                                 {"inference_mode", true},
                                 {"init_lora_weights", true},
                                 {"lora_alpha", config.alpha},
                                 {"lora_dropout", config.dropout},
                                 {"peft_type", "LORA"},
                                 {"r", config.rank},
                                 {"target_modules", config.targets},
                                 {"task_type", nullptr},
                                 {"use_rslora", config.rank_stabilized}};
  if (whole) json["lora_alpha"] = static_cast<int64_t>(config.alpha);  // an integer in peft
  return json.dump(2) + "\n";
}

/// Returns the adapters of the file under their names in the model.
absl::StatusOr<NamedTensors> read_adapters(const std::string& path, bool model_has_body, const Fs& fs) {
  TRAINKIT_ASSIGN_OR_RETURN(const WeightFile file, WeightFile::open(path, fs));
  TRAINKIT_ASSIGN_OR_RETURN(detail::ModelWeights read, detail::read_model_weights(file));
  detail::strip_wrappers(read, [](const std::string& name) { return name.starts_with(kPeftPrefix); });
  NamedTensors& tensors = read.tensors;
  const auto strip = [&](std::string_view prefix) {
    const auto has = [&](const auto& named) { return named.first.starts_with(prefix); };
    if (!std::all_of(tensors.begin(), tensors.end(), has)) return;
    for (auto& named : tensors) named.first.erase(0, prefix.size());
  };
  strip(kPeftPrefix);
  if (!model_has_body) strip(kAdapterBodyPrefix);
  return std::move(tensors);
}

absl::StatusOr<LoRAConfig> parse_lora_config(std::string_view text, const std::string& path) {
  TRAINKIT_ASSIGN_OR_RETURN(const nlohmann::json json, detail::parse_config(text, path));
  LoRAConfig config;
  std::string kind = "LORA", bias = "none";
  detail::ConfigFields fields(json, path);
  fields.read("peft_type", kind);
  fields.read("bias", bias);
  fields.read("r", config.rank);
  fields.read("lora_alpha", config.alpha);
  fields.read("lora_dropout", config.dropout);
  fields.read("use_rslora", config.rank_stabilized);
  TRAINKIT_RETURN_IF_ERROR(fields.status());
  if (kind != "LORA") return to_status(config_error(path, "peft_type", "is another kind", escape_text(kind), "LORA"));
  if (bias != "none") return to_status(config_error(path, "bias", "is not supported", escape_text(bias), "none"));
  if (const auto at = json.find("init_lora_weights");
      at != json.end() && at->is_string() && *at != "gaussian") {  // for example pissa, which changes the weights
    return to_status(config_error(path, "init_lora_weights", "is not supported", detail::short_text(*at), "true"));
  }
  TRAINKIT_RETURN_IF_ERROR(refuse_unknown(json, path));
  TRAINKIT_ASSIGN_OR_RETURN(config.targets, targets_of(json, path));
  if (const absl::Status status = validate(config); !status.ok())
    return to_status(config_error(path, {}, error_of(status)->problem));
  return config;
}

}  // namespace

absl::Status save_lora(const torch::nn::Module& model, const LoRAConfig& config, const std::string& folder,
                       const Fs& fs) {
  NamedTensors tensors = detail::adapter_tensors(model);
  if (tensors.empty()) {
    return to_status({.exit_code = ExitCode::kBug, .id = "weights.write", .problem = "the model has no adapter"},
                     absl::StatusCode::kFailedPrecondition);
  }
  for (auto& named : tensors) named.first.insert(0, kPeftPrefix);
  bool transposed = false;
  for (const auto& part : model.modules()) {
    const auto* layer = part->as<AdaptableImpl>();
    transposed = transposed || (layer && layer->has_adapter() && layer->weight_is_transposed());
  }
  TRAINKIT_ASSIGN_OR_RETURN(const Directory directory, fs.create_directories(folder));
  TRAINKIT_RETURN_IF_ERROR(save_safetensors(fs, folder + "/" + kAdapterSafetensorsName, tensors, {{"format", "pt"}}));
  return write_file_atomically(directory, kAdapterConfigName, config_json(config, transposed));
}

absl::StatusOr<LoRAConfig> load_lora(torch::nn::Module& model, const std::string& folder, const Fs& fs) {
  const std::string config_path = folder + "/" + kAdapterConfigName;
  TRAINKIT_ASSIGN_OR_RETURN(const std::string text, detail::read_config(config_path, fs));
  TRAINKIT_ASSIGN_OR_RETURN(const LoRAConfig config, parse_lora_config(text, config_path));
  const bool is_torch =
      !fs.exists(folder + "/" + kAdapterSafetensorsName) && fs.exists(folder + "/" + kAdapterTorchName);
  const std::string path = folder + "/" + (is_torch ? kAdapterTorchName : kAdapterSafetensorsName);
  const auto parts = model.named_children();
  TRAINKIT_ASSIGN_OR_RETURN(const NamedTensors adapters,
                            read_adapters(path, parts.contains(std::string("transformer")), fs));
  const auto found = detail::find_lora_targets(model, config);
  if (!found.ok()) {
    const Error error = *error_of(found.status());
    return to_status(config_error(config_path, "target_modules", error.problem, error.got, error.expected));
  }
  int64_t rows = 0;  // checked before adapters of this rank are allocated
  for (const auto& [name, tensor] : adapters) {
    if (name.ends_with(".lora_A.weight") && tensor.dim() == 2) rows = std::max(rows, tensor.size(0));
  }
  if (rows != config.rank) {
    return to_status(
        config_error(config_path, "r", "does not fit the adapters", std::to_string(config.rank), std::to_string(rows)));
  }
  detail::add_adapters(*found, config);
  const absl::Status status = copy_named_tensors(adapters, detail::adapter_tensors(model), path);
  if (!status.ok()) {
    for (const auto& [name, layer] : *found) layer->remove_adapter();
    return status;
  }
  detail::train_adapters_alone(model);
  return config;
}

}  // namespace trainkit
