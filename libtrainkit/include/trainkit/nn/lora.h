#pragma once
/// Low-rank adapters: a few numbers beside each large weight are trained instead of the weight.

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trainkit/core/fs.h"

namespace trainkit {

/// What peft.LoraConfig calls r, lora_alpha, lora_dropout, target_modules and use_rslora, with its defaults (0.21) and,
/// for the targets, its default for GPT-2.
struct LoRAConfig {
  /// Rows of A and columns of B. At least 1.
  int64_t rank = 8;
  /// The adapter's output is multiplied by alpha / rank, or by alpha / sqrt(rank) if rank_stabilized.
  double alpha = 8.0;
  /// Of the adapter's input while training. 0 <= dropout < 1.
  double dropout = 0.0;
  /// Layers whose name is one of these or ends in a dot and one of these: "c_attn", "mlp.c_fc", "h.0.attn.c_proj".
  std::vector<std::string> targets = {"c_attn"};
  /// Kalajdzievski 2023, arXiv 2312.03732.
  bool rank_stabilized = false;
};

/// All fields that are out of range, in one error of exit code 2 (cli.value).
absl::Status validate(const LoRAConfig& config);

/// Reads adapter_config.json of peft. Errors (weights.config, exit code 5) name the field: no JSON, a wrong type or
/// range, and whatever would change the output and is not done here, as use_dora, rank_pattern or modules_to_save.
absl::StatusOr<LoRAConfig> parse_lora_config(std::string_view json, const std::string& path);

/// Gives each target its adapter and freezes all other parameters of `model`.
///
///   GPT2Model model = load_gpt2("gpt2").value();
///   absl::Status status = apply_lora(*model, {.rank = 8, .alpha = 16, .targets = {"c_attn"}});
///
/// Optimizers and replicas leave frozen parameters out.
///
/// For targets that are Linear or Conv1D (nn/linear.h), as the linear layers of GPT2Model. The output does not change,
/// for B is 0. Adapters are parameters of their layers, "h.0.attn.c_attn.lora_A.weight" (rank, in) and
/// "h.0.attn.c_attn.lora_B.weight" (out, rank), so that optimizers, checkpoints and replicas have them. Applied before
/// the model goes to a replicator: in the model's factory.
///
/// An error of exit code 2 names a target that no layer has, or whose layer is of another kind; nothing is changed
/// then. Throws if a target has an adapter already.
/// Source: Hu et al. 2021, arXiv 2106.09685; peft 0.21, tuners/lora/layer.py.
absl::Status apply_lora(torch::nn::Module& model, const LoRAConfig& config = {});

/// Adds the adapters to the weights, for the speed of the model without them; unmerge_lora() puts the weights back, bit
/// for bit. In between the weights are kept twice. Merged adapters get no gradient.
void merge_lora(torch::nn::Module& model);
void unmerge_lora(torch::nn::Module& model);
/// Takes the adapters away; what is merged stays. All parameters remain frozen or not as they are.
void remove_lora(torch::nn::Module& model);

/// Writes adapter_model.safetensors and adapter_config.json into `folder`, which is made if need be, as peft's
/// save_pretrained does: PeftModel.from_pretrained(GPT2Model, folder) reads them. `config` is what was applied. Each
/// file as a whole or not at all; errors of writing are of exit code 6. kFailedPrecondition without an adapter.
absl::Status save_lora(const torch::nn::Module& model, const LoRAConfig& config, const std::string& folder,
                       const Fs& fs = Fs::posix());

/// apply_lora() with the configuration of a folder that peft or save_lora wrote, and its adapters; adapter_model.bin is
/// read as well. Adapters of a model with a head ("transformer.h.0...") fit the model without.
///
/// @return the configuration. Errors are of exit code 5: those of parse_lora_config and WeightFile; a target that the
/// model lacks; tensors that are missing, left over or of another shape (weights.match). Nothing is changed then.
absl::StatusOr<LoRAConfig> load_lora(torch::nn::Module& model, const std::string& folder, const Fs& fs = Fs::posix());

}  // namespace trainkit
