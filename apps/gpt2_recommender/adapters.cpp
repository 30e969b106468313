#include "gpt2_recommender/adapters.h"

#include <optional>

#include "gpt2_recommender/gpt2_model.h"
#include "trainkit/core/error.h"

namespace trainkit::rec {

absl::Status add_adapters(torch::nn::Module& gpt2, const RecOptions& options) {
  absl::Status applied = apply_lora(gpt2, options.lora);
  std::optional<Error> error = error_of(applied);
  if (!error) return applied;
  if (error->field == "targets") error->field = "--lora_targets";
  return to_status(*error, applied.code());
}

absl::Status save_adapters(const Recommender& model, const RecOptions& options, const std::string& folder,
                           const char* name) {
  const auto* recommender = dynamic_cast<const Gpt2Recommender*>(&model);
  if (!recommender || options.lora.rank == 0) return absl::OkStatus();
  return save_lora(*recommender->gpt2(), options.lora, folder + "/" + name);
}

absl::Status save_merged(const Recommender& model, const std::string& folder) {
  const auto* recommender = dynamic_cast<const Gpt2Recommender*>(&model);
  if (!recommender) return absl::OkStatus();
  GPT2Model gpt2 = recommender->gpt2();
  merge_lora(*gpt2);
  absl::Status saved = save_gpt2(*gpt2, folder + "/merged");
  unmerge_lora(*gpt2);
  return saved;
}

}  // namespace trainkit::rec
