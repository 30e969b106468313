#include "gpt2_recommender/initial_rows.h"

#include <fmt/format.h>

#include "app/program/initial_weights.h"
#include "gpt2_recommender/catalog.h"
#include "gpt2_recommender/metadata.h"
#include "trainkit/core/status.h"

namespace trainkit::rec {
namespace {

using trainkit::detail::RowNames;

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
    TRAINKIT_RETURN_IF_ERROR(trainkit::detail::check_heads(from, "n_head", options.sizes.n_head));
  }
  const std::string path = trainkit::detail::file_beside(from, kCatalogFile);
  if (path.empty()) {
    facts.emplace_back("warning:",
                       fmt::format("no {} next to {}: row i of its tables is taken for user i and item i of "
                                   "this data, in the order of their first lines",
                                   kCatalogFile, from.file));
    return absl::OkStatus();
  }
  TRAINKIT_ASSIGN_OR_RETURN(const Interactions saved, load_entities(path));
  const RowNames users{"users", id_list(saved.users), id_list(interactions.users)};
  const RowNames items{"items", id_list(saved.items), id_list(interactions.items)};
  if (users.known() == 0 && items.known() == 0) {
    return trainkit::detail::other_meaning(path, "", "has no user and no item of this data",
                                           saved.users.front().id + ", " + saved.items.front().id,
                                           interactions.users.front().id + ", " + interactions.items.front().id,
                                           "start without --init_from: the rows would be those of others");
  }
  RowNames characters{.kind = "characters"};
  if (options.model == "gpt2" && options.gpt2.empty() && options.vocab.empty()) {
    TRAINKIT_ASSIGN_OR_RETURN(characters.in_file, characters_of(saved));
    TRAINKIT_ASSIGN_OR_RETURN(characters.here, characters_of(interactions));
  }
  std::string rows = fmt::format("{} and {}", users.describe(), items.describe());
  if (!characters.here.empty()) rows += ", " + characters.describe();
  facts.emplace_back("start", fmt::format("weights of {}: {} by the names in {}; new rows start as in a new model",
                                          from.file, rows, path));
  load.adapt = [users, items, characters, path](NamedTensors& file, const NamedTensors& model) {
    TRAINKIT_RETURN_IF_ERROR(
        trainkit::detail::take_rows(file, model, users, {"user_embedding", "user_embedding.weight"}, path));
    TRAINKIT_RETURN_IF_ERROR(
        trainkit::detail::take_rows(file, model, items, {"item_embedding", "item_embedding.weight"}, path));
    if (characters.here.empty()) return absl::OkStatus();
    return trainkit::detail::take_rows(file, model, characters, {"gpt2.wte.weight"}, path, /*more_rows=*/true);
  };
  return absl::OkStatus();
}

}  // namespace trainkit::rec
