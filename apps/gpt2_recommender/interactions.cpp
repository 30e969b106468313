#include "gpt2_recommender/interactions.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/random.h"
#include "trainkit/core/status.h"

namespace trainkit::rec {
namespace {

absl::Status bad_data(const std::string& id, const std::string& where, const std::string& problem,
                      const std::string& expected, const std::string& hint) {
  return to_status(
      {.exit_code = ExitCode::kData, .id = id, .where = where, .problem = problem, .expected = expected, .hint = hint});
}

/// Removes rows until every remaining user and item has at least k rows (k-core).
void prune(std::vector<const Rating*>& rows, size_t users, size_t items, int64_t k) {
  for (size_t before = rows.size() + 1; rows.size() < before;) {
    before = rows.size();
    std::vector<int64_t> of_user(users), of_item(items);
    for (const Rating* row : rows) {
      ++of_user[row->user];
      ++of_item[row->item];
    }
    std::erase_if(rows, [&](const Rating* row) { return of_user[row->user] < k || of_item[row->item] < k; });
  }
}

/// Returns the new number of `old`. Assigns the next free number at its first use.
int32_t renumber(int32_t old, std::vector<int32_t>& numbers, const std::vector<Entity>& from, std::vector<Entity>& to) {
  if (numbers[old] < 0) {
    numbers[old] = static_cast<int32_t>(to.size());
    to.push_back(from[old]);
  }
  return numbers[old];
}

/// Returns the rows of each user, in the order of the file.
std::vector<std::vector<int64_t>> rows_by_user(const Interactions& interactions) {
  std::vector<std::vector<int64_t>> rows(interactions.users.size());
  for (int64_t i = 0; i < interactions.size(); ++i) rows[interactions.user[i]].push_back(i);
  return rows;
}

/// Returns how many of a user's `rows` go to {training, validation, test}, by RecBole's rule for 0.8, 0.1, 0.1. Each
/// part is rounded down; the rest is for training. A part that got none takes one from training if more than one is
/// left.
std::array<int64_t, 3> ratio_counts(int64_t rows) {
  constexpr double kRatios[] = {0.8, 0.1, 0.1};
  std::array<int64_t, 3> counts{};
  for (int part : {1, 2}) counts[part] = static_cast<int64_t>(kRatios[part] * static_cast<double>(rows));
  counts[0] = rows - counts[1] - counts[2];
  for (int part : {2, 1}) {
    if (counts[0] <= 1) break;
    if (const double share = kRatios[part] * static_cast<double>(rows); share > 0 && share < 1) {
      ++counts[part];
      --counts[0];
    }
  }
  return counts;
}

void shuffle(std::vector<int64_t>& rows, RandomStream random) {
  for (size_t i = rows.size(); i > 1; --i) std::swap(rows[i - 1], rows[random.below(i)]);
}

Split split_by_ratio(const Interactions& interactions, uint64_t seed) {
  Split split{"80/10/10 of each user at random", std::vector<Part>(interactions.user.size(), Part::kTrain)};
  auto by_user = rows_by_user(interactions);
  for (size_t user = 0; user < by_user.size(); ++user) {
    auto& rows = by_user[user];
    shuffle(rows, RandomStream(hash_key(seed, 0x5711u, user)));
    const auto [train, validation, test] = ratio_counts(static_cast<int64_t>(rows.size()));
    for (int64_t i = 0; i < validation; ++i) split.parts[rows[train + i]] = Part::kValidation;
    for (int64_t i = 0; i < test; ++i) split.parts[rows[train + validation + i]] = Part::kTest;
  }
  return split;
}

Split split_by_time(const Interactions& interactions) {
  Split split{"leave-one-out by time", std::vector<Part>(interactions.user.size(), Part::kTrain)};
  for (auto& rows : rows_by_user(interactions)) {
    if (rows.size() < 3) continue;
    std::stable_sort(rows.begin(), rows.end(),
                     [&](int64_t a, int64_t b) { return interactions.time[a] < interactions.time[b]; });
    split.parts[rows[rows.size() - 2]] = Part::kValidation;
    split.parts[rows.back()] = Part::kTest;
  }
  return split;
}

}  // namespace

std::string Interactions::digest() const {
  Digest digest;
  digest.update(user.data(), user.size() * sizeof user[0]);
  digest.update(item.data(), item.size() * sizeof item[0]);
  return digest.hex();
}

absl::StatusOr<Interactions> filter_ratings(const Ratings& ratings, const FilterOptions& options) {
  if (options.min_rating > 0 && !ratings.has_values) {
    return to_status({.exit_code = ExitCode::kUsage,
                      .id = "cli.value",
                      .where = "--min_rating",
                      .problem = "no ratings in " + ratings.path,
                      .expected = "a column rating:float"});
  }
  std::vector<const Rating*> rows;
  for (const Rating& row : ratings.rows) {
    if (!(row.value < options.min_rating)) rows.push_back(&row);
  }
  if (options.k_core > 1) prune(rows, ratings.users.size(), ratings.items.size(), options.k_core);
  Interactions kept;
  kept.has_times = ratings.has_times;
  std::vector<int32_t> users(ratings.users.size(), -1), items(ratings.items.size(), -1);
  for (const Rating* row : rows) {
    kept.user.push_back(renumber(row->user, users, ratings.users, kept.users));
    kept.item.push_back(renumber(row->item, items, ratings.items, kept.items));
    kept.time.push_back(row->time);
  }
  if (kept.num_users() < 2 || kept.num_items() < 2) {
    return bad_data("data.ratings", ratings.path,
                    fmt::format("{} of {} ratings are left after filtering, of {} users and {} items", rows.size(),
                                ratings.rows.size(), kept.num_users(), kept.num_items()),
                    "at least two of each", "lower --min_rating or --k_core");
  }
  return kept;
}

int64_t Split::count(Part part) const { return std::count(parts.begin(), parts.end(), part); }

absl::StatusOr<Split> make_split(const Interactions& interactions, const SplitOptions& options) {
  Split split;
  if (options.mode == "ratio") {
    split = split_by_ratio(interactions, options.seed);
  } else if (options.mode == "leave_one_out") {
    if (!interactions.has_times) {
      return bad_data("data.split", "leave_one_out", "the ratings have no times", "a column timestamp:float",
                      "use --split ratio, which needs no times");
    }
    split = split_by_time(interactions);
  } else {
    TRAINKIT_ASSIGN_OR_RETURN(split, load_split(options.mode, interactions));
  }
  for (const auto& [part, name] :
       {std::pair(Part::kTrain, "training"), {Part::kValidation, "validation"}, {Part::kTest, "the test"}}) {
    if (split.count(part) > 0) continue;
    return bad_data("data.split", options.mode, fmt::format("no interactions for {}", name),
                    "users with at least three interactions", "");
  }
  return split;
}

UserItems::UserItems(const Interactions& interactions, const Split& split, std::initializer_list<Part> parts)
    : num_items_(interactions.num_items()), offsets_(interactions.users.size() + 1) {
  const auto wanted = [&](int64_t row) {
    return std::find(parts.begin(), parts.end(), split.parts[row]) != parts.end();
  };
  for (int64_t i = 0; i < interactions.size(); ++i) offsets_[interactions.user[i] + 1] += wanted(i);
  std::partial_sum(offsets_.begin(), offsets_.end(), offsets_.begin());
  items_.resize(offsets_.back());
  std::vector<int64_t> next(offsets_.begin(), offsets_.end() - 1);
  for (int64_t i = 0; i < interactions.size(); ++i) {
    if (wanted(i)) items_[next[interactions.user[i]]++] = interactions.item[i];
  }
  for (int64_t user = 0; user < num_users(); ++user) {
    std::sort(items_.begin() + offsets_[user], items_.begin() + offsets_[user + 1]);
  }
}

bool UserItems::contains(int64_t user, int32_t item) const {
  const auto items = of(user);
  return std::binary_search(items.begin(), items.end(), item);
}

}  // namespace trainkit::rec
