#pragma once
/// Filters ratings into implicit feedback and splits it into training, validation and test parts.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "gpt2_recommender/ratings.h"

namespace trainkit::rec {

/// Holds pairs of users and items, each pair once. Users and items are numbered from 0 without gaps.
struct Interactions {
  std::vector<Entity> users = {};
  std::vector<Entity> items = {};
  /// User, item and time of each interaction, in the order of the file. The time is that of the last event.
  std::vector<int32_t> user = {};
  std::vector<int32_t> item = {};
  std::vector<EventTime> time = {};
  /// Row of each pair's last event in Ratings::rows, which orders equal times. Empty: no pair repeats.
  std::vector<int64_t> last_row = {};
  bool has_times = true;
  /// Number of events of each pair. Empty: each has one, or repeated events do not count.
  std::vector<int32_t> count = {};
  /// Part of each pair, if the data have a file for each part. Empty otherwise.
  std::vector<Part> given_parts = {};
  /// Whether the validation part has a file.
  bool has_validation = false;

  int64_t events(int64_t row) const { return count.empty() ? 1 : count[static_cast<size_t>(row)]; }
  /// Digest of the interactions.
  std::string digest() const;

  int64_t size() const { return static_cast<int64_t>(user.size()); }
  int64_t num_users() const { return static_cast<int64_t>(users.size()); }
  int64_t num_items() const { return static_cast<int64_t>(items.size()); }
};

/// Returns the numbers of users or items by their ids. The entities must outlive the table.
std::unordered_map<std::string_view, int32_t> numbers_by_id(const std::vector<Entity>& entities);

struct FilterOptions {
  /// Smallest rating that counts as an interaction.
  double min_rating = 0;
  /// Fewest interactions of a user or an item. Others are removed repeatedly until all have enough. 0 and 1 keep all.
  int64_t k_core = 0;
  /// Keep the number of repeated events in Interactions::count. A repeated pair has the time of its last event.
  bool count_repeats = false;
};

/// Selects the interactions among ratings. Errors: data.ratings (exit code 4) if fewer than two users or items are
/// left; data.split for a pair in the files of two parts; cli.value (exit code 2) for min_rating if the file has no
/// ratings.
absl::StatusOr<Interactions> filter_ratings(const Ratings& ratings, const FilterOptions& options = {});

/// Assigns each interaction to a part.
struct Split {
  /// Description of the rule for reports: "80/10/10 of each user at random".
  std::string protocol = {};
  std::vector<Part> parts = {};

  int64_t count(Part part) const;
};

struct SplitOptions {
  /// "ratio": a random tenth of each user's interactions for the test and validation_share for validation, rounded as
  /// in RecBole. "leave_one_out": each user's last interaction in time for the test and the one before for validation.
  /// Equal times keep the order of the file (that of the last events); users with fewer than three keep all for
  /// training. Otherwise: path of a split file. Without effect if the data have a file for each part; a missing
  /// validation part is then drawn from the training interactions of each user.
  std::string mode = "ratio";
  /// Above 0.
  double validation_share = 0.1;
  uint64_t seed = 0;
};

/// Splits the interactions. Errors, exit code 4: data.split if a part is empty, or if leave_one_out has no times; those
/// of load_split.
/// Source of the rounding: recbole/data/dataset/dataset.py, Dataset._calcu_split_ids (RecBole 1.2.1).
absl::StatusOr<Split> make_split(const Interactions& interactions, const SplitOptions& options);

/// Holds the items of each user, ascending.
class UserItems {
 public:
  UserItems() = default;
  /// Collects the interactions whose part is among `parts`.
  UserItems(const Interactions& interactions, const Split& split, std::initializer_list<Part> parts);
  /// Takes the items of each user, in any order.
  UserItems(std::vector<std::vector<int32_t>> rows, int64_t num_items);

  int64_t num_users() const { return static_cast<int64_t>(offsets_.size()) - 1; }
  int64_t num_items() const { return num_items_; }
  std::span<const int32_t> of(int64_t user) const {
    return {items_.data() + offsets_[user], static_cast<size_t>(offsets_[user + 1] - offsets_[user])};
  }
  bool contains(int64_t user, int32_t item) const;
  int64_t size() const { return static_cast<int64_t>(items_.size()); }
  /// Those of user u are items()[offsets()[u]] to items()[offsets()[u + 1] - 1].
  std::span<const int64_t> offsets() const { return offsets_; }
  std::span<const int32_t> items() const { return items_; }

 private:
  friend class SplitItems;
  int64_t num_items_ = 0;
  std::vector<int64_t> offsets_ = {0};
  std::vector<int32_t> items_;
};

/// Holds the items of each user with their parts. Sorted once, it gives the items of several choices of parts.
class SplitItems {
 public:
  SplitItems() = default;
  SplitItems(const Interactions& interactions, const Split& split);
  /// Returns the items of each user whose part is among `parts`.
  UserItems of(std::initializer_list<Part> parts) const;

 private:
  int64_t num_items_ = 0;
  std::vector<int64_t> offsets_ = {0};
  std::vector<uint32_t> entries_;  // item * 4 + part, ascending for each user
};

/// Write and read a split file (docs/formats/rec-split.md): one line per interaction with the ids of the data set's own
/// files. load_split returns data.split with the line for an unknown, duplicate or missing pair and for an unknown
/// part. So a split of another data set or filter is an error.
absl::Status save_split(const std::string& path, const Interactions& interactions, const Split& split);
absl::StatusOr<Split> load_split(const std::string& path, const Interactions& interactions);

/// Reads the items of some users, in any part, from the split file of a run, whose users and items `catalog` has; row i
/// of the result is users[i]. Errors: weights.catalog (exit code 5).
absl::StatusOr<UserItems> seen_in_split(const std::string& path, const Interactions& catalog,
                                        std::span<const int64_t> users);

}  // namespace trainkit::rec
