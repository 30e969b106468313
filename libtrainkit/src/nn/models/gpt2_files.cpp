// GPT-2 files in the format of `transformers`: config.json and a weight file.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "io/weights/model_weights.h"
#include "nn/models/config_fields.h"
#include "nn/models/lora_layers.h"
#include "trainkit/core/status.h"
#include "trainkit/io/weight_file.h"
#include "trainkit/nn/gpt2.h"

namespace trainkit {
namespace {

using detail::config_error;

constexpr char kConfigName[] = "config.json";
constexpr char kSafetensorsName[] = "model.safetensors";
constexpr char kTorchName[] = "pytorch_model.bin";
/// Name prefix in files of models with a head (GPT2LMHeadModel).
constexpr std::string_view kBodyPrefix = "transformer.";

/// Returns the weights of the model without its head, under the model's parameter names.
absl::StatusOr<NamedTensors> body_tensors(const WeightFile& file, detail::StoredTensors& stored) {
  TRAINKIT_ASSIGN_OR_RETURN(detail::ModelWeights read, detail::list_model_weights(file, stored));
  TRAINKIT_RETURN_IF_ERROR(stored.verify(read.tensors));
  detail::strip_wrappers(read, [](const std::string& name) {
    return name.starts_with(kBodyPrefix) || name == "wte.weight" || name.starts_with("h.");
  });
  NamedTensors& all = read.tensors;
  const auto in_body = [](const auto& named) { return named.first.starts_with(kBodyPrefix); };
  const bool has_head = std::any_of(all.begin(), all.end(), in_body);
  NamedTensors body;
  for (auto& [name, tensor] : all) {
    if (has_head && !name.starts_with(kBodyPrefix)) continue;
    std::string own = has_head ? name.substr(kBodyPrefix.size()) : name;
    const bool is_mask = own.ends_with(".attn.bias") || own.ends_with(".attn.masked_bias");
    if (!is_mask && own != "lm_head.weight") body.emplace_back(std::move(own), std::move(tensor));
  }
  return body;
}

/// Checks that the sizes in the configuration match the weights, before the model is allocated: a small hostile file
/// could otherwise request much memory.
absl::Status check_sizes(const GPT2Config& config, const NamedTensors& weights, const std::string& config_path) {
  std::unordered_map<std::string_view, const at::Tensor*> by_name;
  for (const auto& [name, tensor] : weights) by_name.emplace(name, &tensor);
  const auto check = [&](const char* field, int64_t value, const std::string& name, int64_t dim) -> absl::Status {
    const auto at = by_name.find(name);
    const int64_t found = at != by_name.end() && at->second->dim() == 2 ? at->second->size(dim) : -1;
    if (found == value) return absl::OkStatus();
    return to_status(config_error(config_path, field, "does not fit the weights", std::to_string(value),
                                  found < 0 ? fmt::format("a tensor {}", name) : std::to_string(found)));
  };
  TRAINKIT_RETURN_IF_ERROR(check("vocab_size", config.vocab_size, "wte.weight", 0));
  TRAINKIT_RETURN_IF_ERROR(check("n_positions", config.n_positions, "wpe.weight", 0));
  TRAINKIT_RETURN_IF_ERROR(check("n_embd", config.n_embd, "wte.weight", 1));
  int64_t layers = 0;
  while (by_name.contains(fmt::format("h.{}.ln_1.weight", layers))) ++layers;
  if (layers != config.n_layer) {
    return to_status(config_error(config_path, "n_layer", "does not fit the weights", std::to_string(config.n_layer),
                                  std::to_string(layers)));
  }
  const int64_t inner = config.n_inner > 0 ? config.n_inner : 4 * config.n_embd;
  return check("n_inner", inner, "h.0.mlp.c_fc.weight", 1);
}

absl::StatusOr<std::string> weight_path(const std::string& folder, const Fs& fs) {
  for (const char* name : {kSafetensorsName, kTorchName}) {
    if (fs.exists(folder + "/" + name)) return folder + "/" + name;
  }
  Error error = config_error(folder, {}, "has no weights", {}, fmt::format("{} or {}", kSafetensorsName, kTorchName));
  error.id = "weights.file";
  for (const char* name : {kSafetensorsName, kTorchName}) {
    if (fs.exists(fmt::format("{}/{}.index.json", folder, name)))
      error.hint = "sharded weights are not supported: in Python, save_pretrained(folder, max_shard_size=\"100GB\")";
  }
  return to_status(error, absl::StatusCode::kNotFound);
}

NamedTensors parameters_of(const GPT2ModelImpl& model) {
  NamedTensors tensors;
  for (const auto& item : model.named_parameters()) tensors.emplace_back(item.key(), item.value());
  return tensors;
}

std::string config_json(const GPT2Config& config) {
  const nlohmann::ordered_json inner = config.n_inner > 0 ? nlohmann::ordered_json(config.n_inner) : nullptr;
  const nlohmann::ordered_json json = {
      {"activation_function", config.activation_function},
      {"architectures", {"GPT2Model"}},
      {"attn_pdrop", config.attn_pdrop},
      {"embd_pdrop", config.embd_pdrop},
      {"initializer_range", config.initializer_range},
      {"layer_norm_epsilon", config.layer_norm_epsilon},
      {"model_type", "gpt2"},
      {"n_embd", config.n_embd},
      {"n_head", config.n_head},
      {"n_inner", inner},
      {"n_layer", config.n_layer},
      {"n_positions", config.n_positions},
      {"resid_pdrop", config.resid_pdrop},
      {"scale_attn_by_inverse_layer_idx", config.scale_attn_by_inverse_layer_idx},
      {"scale_attn_weights", config.scale_attn_weights},
      {"vocab_size", config.vocab_size},
  };
  return json.dump(2) + "\n";
}

}  // namespace

absl::StatusOr<GPT2Config> parse_gpt2_config(std::string_view text, const std::string& path) {
  TRAINKIT_ASSIGN_OR_RETURN(const nlohmann::json json, detail::parse_config(text, path));
  GPT2Config config;
  std::string model_type = "gpt2";
  bool cross_attention = false;
  detail::ConfigFields fields(json, path);
  fields.read("model_type", model_type);
  fields.read("add_cross_attention", cross_attention);
  fields.read("vocab_size", config.vocab_size);
  fields.read("n_positions", config.n_positions);
  fields.read("n_embd", config.n_embd);
  fields.read("n_layer", config.n_layer);
  fields.read("n_head", config.n_head);
  fields.read("n_inner", config.n_inner);
  fields.read("activation_function", config.activation_function);
  fields.read("embd_pdrop", config.embd_pdrop);
  fields.read("attn_pdrop", config.attn_pdrop);
  fields.read("resid_pdrop", config.resid_pdrop);
  fields.read("layer_norm_epsilon", config.layer_norm_epsilon);
  fields.read("initializer_range", config.initializer_range);
  fields.read("scale_attn_weights", config.scale_attn_weights);
  fields.read("scale_attn_by_inverse_layer_idx", config.scale_attn_by_inverse_layer_idx);
  TRAINKIT_RETURN_IF_ERROR(fields.status());
  if (model_type != "gpt2")
    return to_status(config_error(path, "model_type", "is another model", escape_text(model_type), "gpt2"));
  if (cross_attention) return to_status(config_error(path, "add_cross_attention", "is not supported", "true", "false"));
  if (const absl::Status status = validate(config); !status.ok())
    return to_status(config_error(path, {}, error_of(status)->problem));
  return config;
}

absl::StatusOr<GPT2Model> load_gpt2(const std::string& folder, const Fs& fs) {
  const std::string config_path = folder + "/" + kConfigName;
  TRAINKIT_ASSIGN_OR_RETURN(const std::string text, detail::read_config(config_path, fs));
  TRAINKIT_ASSIGN_OR_RETURN(const GPT2Config config, parse_gpt2_config(text, config_path));
  TRAINKIT_ASSIGN_OR_RETURN(const std::string path, weight_path(folder, fs));
  TRAINKIT_ASSIGN_OR_RETURN(const WeightFile file, WeightFile::open(path, fs));
  detail::StoredTensors stored;
  TRAINKIT_ASSIGN_OR_RETURN(const NamedTensors weights, body_tensors(file, stored));
  TRAINKIT_RETURN_IF_ERROR(check_sizes(config, weights, config_path));
  GPT2Model model(config);
  TRAINKIT_RETURN_IF_ERROR(stored.copy_all(weights, parameters_of(*model), path));
  model->eval();
  return model;
}

absl::Status save_gpt2(const GPT2ModelImpl& model, const std::string& folder, const Fs& fs) {
  for (const auto& item : model.named_modules()) {
    const auto* layer = item.value()->as<AdaptableImpl>();
    if (layer && layer->has_adapter() && !layer->is_merged()) {
      return to_status({.exit_code = ExitCode::kBug,
                        .id = "weights.write",
                        .field = item.key(),
                        .problem = "has an adapter that is not merged"},
                       absl::StatusCode::kFailedPrecondition);
    }
  }
  NamedTensors tensors = parameters_of(model);
  std::erase_if(tensors, [](const auto& named) { return detail::is_adapter(named.first); });
  TRAINKIT_ASSIGN_OR_RETURN(const Directory directory, fs.create_directories(folder));
  TRAINKIT_RETURN_IF_ERROR(save_safetensors(fs, folder + "/" + kSafetensorsName, tensors, {{"format", "pt"}}));
  return write_file_atomically(directory, kConfigName, config_json(model.config()));
}

}  // namespace trainkit
