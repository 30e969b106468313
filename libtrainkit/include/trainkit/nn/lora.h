#pragma once
/// Low-rank adapters (LoRA): trains two small matrices per layer instead of its weight.

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trainkit/core/fs.h"

namespace trainkit {

/// Fields r, lora_alpha, lora_dropout, target_modules and use_rslora of peft.LoraConfig, with its defaults (0.21) and
/// its default targets for GPT-2.
struct LoRAConfig {
  /// Rows of A and columns of B. At least 1.
  int64_t rank = 8;
  /// Scale: the adapter's output is multiplied by alpha / rank, or by alpha / sqrt(rank) if rank_stabilized.
  double alpha = 8.0;
  /// Dropout of the adapter's input in training. 0 <= dropout < 1.
  double dropout = 0.0;
  /// Names of the adapted layers. A layer matches if its name is an entry, or ends with a dot and an entry: "c_attn",
  /// "mlp.c_fc", "h.0.attn.c_proj".
  std::vector<std::string> targets = {"c_attn"};
  /// Rank-stabilized scaling. Source: Kalajdzievski 2023, arXiv 2312.03732.
  bool rank_stabilized = false;
};

/// Checks all fields. One error of exit code 2 (cli.value) lists every field that is out of range.
absl::Status validate(const LoRAConfig& config);

/// Adds an adapter to each target layer and freezes all other parameters of `model`.
///
///   GPT2Model model = load_gpt2("gpt2").value();
///   absl::Status status = apply_lora(*model, {.rank = 8, .alpha = 16, .targets = {"c_attn"}});
///
/// Optimizers and replicas skip frozen parameters.
///
/// Targets must be Linear or Conv1D (nn/linear.h), as the linear layers of GPT2Model are, or linear layers of an
/// ExportedModel: "dropout" must be 0 there, and backward computes the gradient of their weights. The output does not
/// change, since B is 0. Adapters are parameters of their layers, "h.0.attn.c_attn.lora_A.weight" (rank, in) and
/// "h.0.attn.c_attn.lora_B.weight" (out, rank), so that optimizers, checkpoints and replicas include them. Call it in
/// the model factory, before the model is replicated.
///
/// An error of exit code 2 names a target that matches no layer or a layer of another type; the model is then
/// unchanged. Throws if a target already has an adapter. Source: Hu et al. 2021, arXiv 2106.09685; peft 0.21,
/// tuners/lora/layer.py.
absl::Status apply_lora(torch::nn::Module& model, const LoRAConfig& config = {});

/// Adds the adapters to the weights, so that inference costs as much as without adapters. unmerge_lora() restores the
/// weights bit for bit from a copy that is kept while merged. Merged adapters get no gradient.
void merge_lora(torch::nn::Module& model);
void unmerge_lora(torch::nn::Module& model);
/// Removes the adapters; merged weights stay merged. Does not change which parameters are frozen.
void remove_lora(torch::nn::Module& model);

/// Writes adapter_model.safetensors and adapter_config.json into `folder` as peft's save_pretrained does;
/// PeftModel.from_pretrained(GPT2Model, folder) reads them. `config` is the applied configuration. Creates the folder
/// if needed; writes each file atomically. Write errors have exit code 6; kFailedPrecondition without an adapter.
absl::Status save_lora(const torch::nn::Module& model, const LoRAConfig& config, const std::string& folder,
                       const Fs& fs = Fs::posix());

/// Applies the configuration and loads the adapters of a folder written by peft or save_lora. Reads adapter_model.bin
/// too. Accepts adapters of a model with a head ("transformer.h.0...") for a model without one.
///
/// @return the configuration. Errors have exit code 5: an adapter_config.json with invalid JSON, a wrong type or range,
/// or an option that changes the output and is not supported, such as use_dora, rank_pattern or modules_to_save
/// (weights.config, with the field); those of WeightFile; a target that the model lacks; missing or surplus tensors, or
/// tensors of a different shape (weights.match). The model is then unchanged. Throws c10::Error if the model already
/// has adapters.
absl::StatusOr<LoRAConfig> load_lora(torch::nn::Module& model, const std::string& folder, const Fs& fs = Fs::posix());

}  // namespace trainkit
