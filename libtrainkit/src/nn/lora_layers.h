#pragma once
/// What applying adapters and reading them from files share.

#include <absl/status/statusor.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trainkit/io/safetensors.h"
#include "trainkit/nn/linear.h"
#include "trainkit/nn/lora.h"

namespace trainkit::detail {

/// Layers by their names in the model.
using LoRALayers = std::vector<std::pair<std::string, AdaptableImpl*>>;

/// The layers that the configuration means; every target means one at least.
absl::StatusOr<LoRALayers> find_lora_targets(torch::nn::Module& model, const LoRAConfig& config);

/// Throws if one has an adapter already.
void add_adapters(const LoRALayers& layers, const LoRAConfig& config);

/// Whether a parameter of that name is an adapter's.
bool is_adapter(std::string_view name);
NamedTensors adapter_tensors(const torch::nn::Module& model);
void train_adapters_alone(torch::nn::Module& model);

}  // namespace trainkit::detail
