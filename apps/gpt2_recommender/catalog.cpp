#include "gpt2_recommender/catalog.h"

#include <fmt/format.h>

#include "gpt2_recommender/metadata.h"
#include "trainkit/app/initial_weights.h"
#include "trainkit/app/stored_values.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"

namespace trainkit::rec {
namespace {

using IdsAndTexts = std::vector<std::pair<std::string, std::string>>;

IdsAndTexts ids_and_texts(const std::vector<Entity>& entities) {
  IdsAndTexts rows;
  for (const Entity& entity : entities) rows.emplace_back(entity.id, entity.text);
  return rows;
}

std::vector<Entity> entities_of(IdsAndTexts rows) {
  std::vector<Entity> entities;
  for (auto& [id, text] : rows) entities.push_back({std::move(id), std::move(text)});
  return entities;
}

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

absl::Status save_catalog(const std::string& path, const Interactions& interactions) {
  return save_values(path,
                     {{"users", ids_and_texts(interactions.users)}, {"items", ids_and_texts(interactions.items)}});
}

absl::StatusOr<Interactions> load_entities(const std::string& catalog) {
  IdsAndTexts users, items;
  TRAINKIT_RETURN_IF_ERROR(load_values(
      catalog, {{"users", &users, 1}, {"items", &items, 1}},
      {.exit_code = ExitCode::kWeights, .id = "weights.catalog", .expected = "the users and items of this run"}));
  return Interactions{.users = entities_of(std::move(users)), .items = entities_of(std::move(items))};
}

absl::Status save_seen(const std::string& path, const UserItems& seen) {
  std::string bytes;
  const auto append = [&](const auto& numbers) {
    bytes.append(reinterpret_cast<const char*>(numbers.data()), numbers.size_bytes());
  };
  append(seen.offsets());
  append(seen.items());
  return write_file_atomically(Fs::posix(), path, bytes);
}

absl::StatusOr<UserItems> load_seen(const std::string& path, const Interactions& catalog,
                                    std::span<const int64_t> users) {
  const auto damaged = [&](const std::string& problem) {
    return to_status({.exit_code = ExitCode::kWeights,
                      .id = "weights.catalog",
                      .where = path,
                      .problem = problem,
                      .expected = "the items of this run's users"});
  };
  const auto opened = Fs::posix().open_file(path);
  if (!opened.ok()) return reclassify(opened.status(), ExitCode::kWeights, "weights.catalog");
  const ReadableFile& file = *opened;
  const int64_t begin = (catalog.num_users() + 1) * 8, pairs = (file.size_bytes() - begin) / 4;
  std::vector<std::vector<int32_t>> rows;
  for (const int64_t user : users) {
    int64_t range[2] = {};  // of the user's items among those of all users
    std::vector<int32_t>& items = rows.emplace_back();
    absl::Status read = file.read_at(user * 8, range, sizeof range);
    if (read.ok() && (range[0] < 0 || range[0] > range[1] || range[1] > pairs))
      return damaged("has impossible offsets");
    if (read.ok()) {
      items.resize(static_cast<size_t>(range[1] - range[0]));
      read = file.read_at(begin + range[0] * 4, items.data(), items.size() * 4);
    }
    if (!read.ok()) return reclassify(read, ExitCode::kWeights, "weights.catalog");
    for (const int32_t item : items) {
      if (item < 0 || item >= catalog.num_items()) return damaged(fmt::format("has an unknown item {}", item));
    }
  }
  return UserItems(std::move(rows), catalog.num_items());
}

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
