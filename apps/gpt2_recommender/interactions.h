#pragma once
/// Implicit feedback: who had to do with what, and which of it is trained on, watched and scored.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gpt2_recommender/ratings.h"

namespace trainkit::rec {

/// Pairs of users and items, each pair once, both numbered from 0 without gaps.
struct Interactions {
  std::vector<Entity> users = {};
  std::vector<Entity> items = {};
  /// Of each interaction, in the order of the file.
  std::vector<int32_t> user = {};
  std::vector<int32_t> item = {};
  std::vector<int64_t> time = {};
  bool has_times = true;

  int64_t size() const { return static_cast<int64_t>(user.size()); }
  int64_t num_users() const { return static_cast<int64_t>(users.size()); }
  int64_t num_items() const { return static_cast<int64_t>(items.size()); }
};

struct FilterOptions {
  /// A rating below it is no interaction.
  double min_rating = 0;
  /// Users and items with fewer interactions are left out, again and again until none is left with fewer; 0 and 1 keep
  /// all.
  int64_t k_core = 0;
};

/// The interactions among ratings. data.ratings (exit code 4) if fewer than two users or items are left; cli.value
/// (exit code 2) for a threshold on ratings that the file does not have.
absl::StatusOr<Interactions> filter_ratings(const Ratings& ratings, const FilterOptions& options = {});

enum class Part : uint8_t { kTrain, kValidation, kTest };

/// Which part each interaction belongs to.
struct Split {
  /// How it came about, for people: "80/10/10 of each user at random".
  std::string protocol = {};
  std::vector<Part> parts = {};

  int64_t count(Part part) const;
};

struct SplitOptions {
  /// "ratio": of each user's interactions a tenth, at random, is for the test and a tenth for validation, rounded as
  /// RecBole rounds. "leave_one_out": a user's last interaction in time is for the test and the one before for
  /// validation; ties keep the order of the file; a user with fewer than three keeps all for training. Otherwise the
  /// path of a split file.
  std::string mode = "ratio";
  uint64_t seed = 0;
};

/// Errors, exit code 4: data.split if nothing is left to test or to validate on, or if there are no times to go by;
/// those of load_split.
/// Source of the rounding: recbole/data/dataset/dataset.py, Dataset._calcu_split_ids (RecBole 1.2.1).
absl::StatusOr<Split> make_split(const Interactions& interactions, const SplitOptions& options);

/// Writes and reads docs/formats/rec-split.md: a line for each interaction, by the ids of the data set's own files.
/// load_split refuses (data.split, with the line) a pair that is not in the data, stands twice or is missing, and an
/// unknown part: a split of another data set or another filter is an error.
absl::Status save_split(const std::string& path, const Interactions& interactions, const Split& split);
absl::StatusOr<Split> load_split(const std::string& path, const Interactions& interactions);

/// Items of each user, ascending.
class UserItems {
 public:
  UserItems() = default;
  /// Those of the interactions whose part is among `parts`.
  UserItems(const Interactions& interactions, const Split& split, std::initializer_list<Part> parts);

  int64_t num_users() const { return static_cast<int64_t>(offsets_.size()) - 1; }
  int64_t num_items() const { return num_items_; }
  std::span<const int32_t> of(int64_t user) const {
    return {items_.data() + offsets_[user], static_cast<size_t>(offsets_[user + 1] - offsets_[user])};
  }
  bool contains(int64_t user, int32_t item) const;
  int64_t size() const { return static_cast<int64_t>(items_.size()); }

 private:
  int64_t num_items_ = 0;
  std::vector<int64_t> offsets_ = {0};
  std::vector<int32_t> items_;
};

}  // namespace trainkit::rec
