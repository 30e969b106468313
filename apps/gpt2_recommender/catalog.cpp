#include "gpt2_recommender/catalog.h"

#include <fmt/format.h>

#include <algorithm>

#include "trainkit/app/stored_values.h"
#include "trainkit/core/error.h"
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

absl::StatusOr<Interactions> load_catalog(const std::string& catalog, const std::string& split) {
  TRAINKIT_ASSIGN_OR_RETURN(Interactions interactions, load_entities(catalog));
  TRAINKIT_RETURN_IF_ERROR(load_pairs(split, interactions));
  return interactions;
}

absl::StatusOr<int64_t> find_entity(const std::vector<Entity>& entities, const std::string& flag,
                                    const std::string& id) {
  const auto found = std::find_if(entities.begin(), entities.end(), [&](const Entity& e) { return e.id == id; });
  if (found != entities.end()) return found - entities.begin();
  return to_status({.exit_code = ExitCode::kUsage,
                    .id = "cli.value",
                    .field = flag,
                    .problem = "an id that the run was not trained on",
                    .got = id,
                    .expected = fmt::format("one of {} ids, such as {}", entities.size(), entities.front().id)});
}

UserItems items_of(const Interactions& interactions, std::span<const int64_t> users) {
  std::vector<std::vector<int32_t>> rows(interactions.users.size());
  for (size_t i = 0; i < users.size(); ++i) rows[static_cast<size_t>(users[i])].push_back(static_cast<int32_t>(i));
  Interactions chosen;
  chosen.users.resize(users.size());
  chosen.items.resize(interactions.items.size());
  for (size_t i = 0; i < interactions.user.size(); ++i) {
    for (const int32_t row : rows[static_cast<size_t>(interactions.user[i])]) {
      chosen.user.push_back(row);
      chosen.item.push_back(interactions.item[i]);
    }
  }
  return UserItems(chosen, {"", std::vector<Part>(chosen.user.size(), Part::kTrain)}, {Part::kTrain});
}

}  // namespace trainkit::rec
