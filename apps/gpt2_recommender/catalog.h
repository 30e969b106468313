#pragma once
/// Stores the users, the items and what each user has chosen next to the weights of a run, so that recommendations need
/// no other files.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <span>
#include <string>

#include "gpt2_recommender/interactions.h"
#include "gpt2_recommender/options.h"
#include "trainkit/app/app.h"

namespace trainkit::rec {

/// Names of the files in a run's folder.
inline constexpr char kCatalogFile[] = "catalog.json";
inline constexpr char kSplitFile[] = "split.tsv";
inline constexpr char kSeenFile[] = "split.index";

/// Writes ids and texts of users and items in the order of the model's rows: {"users": [[id, text], ...], "items":
/// [...]}. Errors: exit code 6.
absl::Status save_catalog(const std::string& path, const Interactions& interactions);

/// Reads the users and items alone. Errors: weights.catalog (exit code 5) for a damaged file; those of MappedFile.
absl::StatusOr<Interactions> load_entities(const std::string& catalog);

/// Writes the items of each user: offsets of the users, (U + 1) int64, then the items of all users, (N) int32 (see
/// docs/formats/rec-split.md). Errors: exit code 6.
absl::Status save_seen(const std::string& path, const UserItems& seen);

/// Reads the items of some users from a file of save_seen, and no other bytes; row i of the result is users[i]. The
/// file has the users and items of `catalog`. Errors: weights.catalog (exit code 5) for a damaged file.
absl::StatusOr<UserItems> load_seen(const std::string& path, const Interactions& catalog,
                                    std::span<const int64_t> users);

/// Implements App::adapt_weights: rows of users and items by the ids in the catalog of the weights' run, rows of
/// GPT-2's vocabulary by character if that is the characters of the texts. Errors: those of load_entities;
/// weights.meaning (exit code 5) if no user and no item is known.
absl::Status adapt_rows(const RunWeights& from, const Interactions& interactions, const RecOptions& options,
                        LoadWeightsOptions& load, RunFacts& facts);

}  // namespace trainkit::rec
