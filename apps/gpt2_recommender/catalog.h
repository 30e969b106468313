#pragma once
/// Stores the users and items of a run next to its weights, so that recommendations need no other files.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <span>
#include <string>

#include "gpt2_recommender/interactions.h"

namespace trainkit::rec {

/// Names of the files in a run's folder.
inline constexpr char kCatalogFile[] = "catalog.json";
inline constexpr char kSplitFile[] = "split.tsv";

/// Writes ids and texts of users and items in the order of the model's rows: {"users": [[id, text], ...], "items":
/// [...]}. Errors: exit code 6.
absl::Status save_catalog(const std::string& path, const Interactions& interactions);

/// Reads the users and items alone. Errors: weights.catalog (exit code 5) for a damaged file; those of MappedFile.
absl::StatusOr<Interactions> load_entities(const std::string& catalog);

/// Reads the users and items from `catalog`, and the interactions of all parts from the split file `split`. Times are
/// 0. Errors: weights.catalog (exit code 5) for damaged files; those of TextFile.
absl::StatusOr<Interactions> load_catalog(const std::string& catalog, const std::string& split);

/// Returns the number of the entity of that id. cli.value (exit code 2) names `flag` for an unknown id.
absl::StatusOr<int64_t> find_entity(const std::vector<Entity>& entities, const std::string& flag,
                                    const std::string& id);

/// Returns the items of some users; row i of the result is users[i].
UserItems items_of(const Interactions& interactions, std::span<const int64_t> users);

}  // namespace trainkit::rec
