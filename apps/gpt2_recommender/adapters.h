#pragma once
/// What a run with --lora_rank writes beside its checkpoints.

#include <absl/status/status.h>

#include <string>

#include "gpt2_recommender/models.h"
#include "gpt2_recommender/options.h"
#include "trainkit/nn/lora.h"

namespace trainkit::rec {

/// --lora_rank, --lora_alpha and --lora_targets.
LoRAConfig lora_config(const RecOptions& options);

/// Writes the adapters of `model` into `<output_dir>/<name>` in peft's layout (save_lora); nothing without adapters.
/// Errors: exit code 6.
absl::Status save_adapters(const Recommender& model, const RecOptions& options, const std::string& output_dir,
                           const char* name);

/// --merge_lora: writes GPT-2 with the adapters added to its weights into `<output_dir>/merged`, a folder as Hugging
/// Face saves one (save_gpt2). `model` is as before afterwards, bit for bit. Errors: exit code 6.
absl::Status save_merged(const Recommender& model, const std::string& output_dir);

}  // namespace trainkit::rec
