#include "gpt2_recommender/catalog.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/io/mapped_file.h"
#include "trainkit/io/table.h"

namespace trainkit::rec {
namespace {

absl::Status bad_catalog(const std::string& path, const std::string& problem) {
  return to_status({.exit_code = ExitCode::kWeights,
                    .id = "weights.catalog",
                    .where = path,
                    .problem = problem,
                    .expected = "the users and items of this run"});
}

nlohmann::json entities_to_json(const std::vector<Entity>& entities) {
  auto list = nlohmann::json::array();
  for (const Entity& entity : entities) list.push_back({entity.id, entity.text});
  return list;
}

bool entities_from_json(const nlohmann::json& list, std::vector<Entity>& entities) {
  if (!list.is_array() || list.empty()) return false;
  for (const auto& entry : list) {
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_string()) return false;
    entities.push_back({entry[0].get<std::string>(), entry[1].get<std::string>()});
  }
  return true;
}

std::unordered_map<std::string_view, int32_t> numbers_by_id(const std::vector<Entity>& entities) {
  std::unordered_map<std::string_view, int32_t> numbers;
  for (const Entity& entity : entities) numbers.emplace(entity.id, static_cast<int32_t>(numbers.size()));
  return numbers;
}

/// Reads the pairs of a split file, whatever their part.
absl::Status read_pairs(const std::string& path, Interactions& interactions) {
  TRAINKIT_ASSIGN_OR_RETURN(const TextFile file, TextFile::open(path, {.kind = "split", .may_end_open = false}));
  const auto users = numbers_by_id(interactions.users), items = numbers_by_id(interactions.items);
  std::vector<std::string_view> fields;
  TRAINKIT_RETURN_IF_ERROR(file.for_each_line([&](int64_t line, std::string_view text) -> absl::Status {
    if (text.starts_with("# ") || text.starts_with("user_id:token")) return absl::OkStatus();
    split_fields(text, "\t", fields);
    const auto user = fields.size() == 3 ? users.find(fields[0]) : users.end();
    const auto item = fields.size() == 3 ? items.find(fields[1]) : items.end();
    if (user == users.end() || item == items.end()) {
      return bad_catalog(fmt::format("{}:{}", path, line), "not an interaction of a known user and item");
    }
    interactions.user.push_back(user->second);
    interactions.item.push_back(item->second);
    return absl::OkStatus();
  }));
  interactions.time.resize(interactions.user.size());
  interactions.has_times = false;
  return absl::OkStatus();
}

}  // namespace

absl::Status save_catalog(const std::string& path, const Interactions& interactions) {
  const nlohmann::json json = {{"users", entities_to_json(interactions.users)},
                               {"items", entities_to_json(interactions.items)}};
  return write_file_atomically(Fs::posix(), path,
                               json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

absl::StatusOr<Interactions> load_entities(const std::string& catalog) {
  TRAINKIT_ASSIGN_OR_RETURN(const auto file, MappedFile::open(catalog));
  const auto json = nlohmann::json::parse(file->text(), nullptr, /*allow_exceptions=*/false);
  Interactions interactions;
  if (!json.is_object() || !entities_from_json(json.value("users", nlohmann::json()), interactions.users) ||
      !entities_from_json(json.value("items", nlohmann::json()), interactions.items)) {
    return bad_catalog(catalog, "damaged");
  }
  TRAINKIT_RETURN_IF_ERROR(file->check());
  return interactions;
}

absl::StatusOr<Interactions> load_catalog(const std::string& catalog, const std::string& split) {
  TRAINKIT_ASSIGN_OR_RETURN(Interactions interactions, load_entities(catalog));
  TRAINKIT_RETURN_IF_ERROR(read_pairs(split, interactions));
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
