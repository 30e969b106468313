#pragma once
/// Saves LoRA adapters and merged weights of a run with --lora_rank.

#include <absl/status/status.h>

#include <string>

#include "gpt2_recommender/models.h"
#include "gpt2_recommender/options.h"

namespace trainkit::rec {

/// Adds the adapters to GPT-2 (apply_lora). Its errors name the flags.
absl::Status add_adapters(torch::nn::Module& gpt2, const RecOptions& options);

/// Writes the adapters of `model` to `<folder>/<name>` in peft's layout (save_lora). Does nothing without adapters.
/// Errors: exit code 6.
absl::Status save_adapters(const Recommender& model, const RecOptions& options, const std::string& folder,
                           const char* name);

/// Implements --merge_lora: writes GPT-2 with the adapters merged into its weights to `<folder>/merged`, in Hugging
/// Face's layout (save_gpt2). Restores the weights of `model` bit for bit. Errors: exit code 6.
absl::Status save_merged(const Recommender& model, const std::string& folder);

}  // namespace trainkit::rec
