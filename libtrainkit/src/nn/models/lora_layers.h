#pragma once
/// Functions shared by lora.cpp and lora_files.cpp.

#include <absl/status/statusor.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trainkit/io/safetensors.h"
#include "trainkit/nn/linear.h"
#include "trainkit/nn/lora.h"

namespace trainkit::detail {

/// Layers with their names in the model.
using LoRALayers = std::vector<std::pair<std::string, AdaptableImpl*>>;

/// Returns the layers that match the targets. An error if a target matches no layer.
absl::StatusOr<LoRALayers> find_lora_targets(torch::nn::Module& model, const LoRAConfig& config);

/// Throws if a layer already has an adapter.
void add_adapters(const LoRALayers& layers, const LoRAConfig& config);

/// Returns whether `name` is the name of an adapter's parameter.
bool is_adapter(std::string_view name);
NamedTensors adapter_tensors(const torch::nn::Module& model);
void train_adapters_alone(torch::nn::Module& model);

}  // namespace trainkit::detail
