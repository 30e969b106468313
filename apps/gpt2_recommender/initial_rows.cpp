#include "gpt2_recommender/initial_rows.h"

#include <fmt/format.h>

#include "gpt2_recommender/catalog.h"
#include "gpt2_recommender/metadata.h"
#include "trainkit/app/initial_weights.h"
#include "trainkit/core/status.h"

namespace trainkit::rec {
namespace {

std::vector<std::string> id_list(const std::vector<Entity>& entities) {
  std::vector<std::string> ids;
  ids.reserve(entities.size());
  for (const Entity& entity : entities) ids.push_back(entity.id);
  return ids;
}

/// Returns the characters of the texts, in the order of the tokens.
absl::StatusOr<std::vector<std::string>> characters_of(const Interactions& interactions) {
  TokenId empty = 0;
  TRAINKIT_ASSIGN_OR_RETURN(const auto tokenizer, metadata_tokenizer(interactions, "", empty));
  std::vector<std::string> characters;
  for (int64_t id = 0; id < tokenizer->vocab_size(); ++id)
    characters.emplace_back(tokenizer->token_bytes(static_cast<TokenId>(id)));
  return characters;
}

}  // namespace

absl::Status adapt_rows(const RunWeights& from, const Interactions& interactions, const RecOptions& options,
                        LoadWeightsOptions& load, RunFacts& facts) {
  if (!options.plan_data.empty()) return absl::OkStatus();  // made-up users and items
  if (options.model == "gpt2" && options.gpt2.empty()) {
    TRAINKIT_RETURN_IF_ERROR(check_setting(from, "n_head", std::to_string(options.sizes.n_head), "number of heads"));
  }
  const std::string path = file_beside(from, kCatalogFile);
  if (path.empty()) {
    facts.emplace_back("warning:",
                       fmt::format("no {} next to {}: row i of its tables is taken for user i and item i of "
                                   "this data, in the order of their first lines",
                                   kCatalogFile, from.file));
    return absl::OkStatus();
  }
  TRAINKIT_ASSIGN_OR_RETURN(const Interactions saved, load_entities(path));
  std::vector<RowNames> rows = {
      {"users", id_list(saved.users), id_list(interactions.users), {"user_embedding", "user_embedding.weight"}},
      {"items", id_list(saved.items), id_list(interactions.items), {"item_embedding", "item_embedding.weight"}}};
  if (options.model == "gpt2" && options.gpt2.empty() && options.vocab.empty()) {
    RowNames characters{.kind = "characters", .tensors = {"gpt2.wte.weight"}, .more_rows = true, .required = false};
    TRAINKIT_ASSIGN_OR_RETURN(characters.in_file, characters_of(saved));
    TRAINKIT_ASSIGN_OR_RETURN(characters.here, characters_of(interactions));
    rows.push_back(std::move(characters));
  }
  return take_rows(from, path, rows, load, facts);
}

}  // namespace trainkit::rec
