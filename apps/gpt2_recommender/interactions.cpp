#include "gpt2_recommender/interactions.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "gpt2_recommender/rows_by_user.h"
#include "trainkit/core/data_error.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/random.h"
#include "trainkit/core/status.h"

namespace trainkit::rec {
namespace {

/// The events of one pair of user and item.
struct Events {
  const Rating* first;
  const Rating* last;  // in time; of equal times, the later in the file
  int32_t count = 1;
};

/// Returns the events of each pair with at least `min_rating`, in the order of their first row. Error data.split if a
/// pair is in two parts.
absl::StatusOr<std::vector<Events>> collect(const Ratings& ratings, double min_rating) {
  constexpr int64_t kIsFirst = -1;
  std::vector<int64_t> first_of;  // first row of the pair of each row; of a first row, its place in `pairs`
  if (ratings.may_repeat) {
    first_of.resize(ratings.rows.size(), kIsFirst);
    for_each_repeat(ratings, min_rating, [&](int64_t row, int64_t first) { first_of[row] = first; });
  }
  std::vector<Events> pairs;
  pairs.reserve(ratings.rows.size());
  for (size_t i = 0; i < ratings.rows.size(); ++i) {
    const Rating& row = ratings.rows[i];
    if (row.value < min_rating) continue;
    if (first_of.empty() || first_of[i] == kIsFirst) {
      if (!first_of.empty()) first_of[i] = std::ssize(pairs);
      pairs.push_back({&row, &row});
      continue;
    }
    Events& pair = pairs[first_of[first_of[i]]];
    if (pair.first->part != row.part) {
      return data_error("data.split", {.file = ratings.path},
                        fmt::format("user {} and item {} are in two of the files", ratings.users[row.user].id,
                                    ratings.items[row.item].id),
                        "", "each pair in one part");
    }
    ++pair.count;
    if (row.time >= pair.last->time) pair.last = &row;
  }
  return pairs;
}

/// Removes pairs until every remaining user and item has at least k of them (k-core).
void prune(std::vector<Events>& pairs, size_t users, size_t items, int64_t k) {
  for (size_t before = pairs.size() + 1; pairs.size() < before;) {
    before = pairs.size();
    std::vector<int64_t> of_user(users), of_item(items);
    for (const Events& pair : pairs) {
      ++of_user[pair.first->user];
      ++of_item[pair.first->item];
    }
    std::erase_if(pairs,
                  [&](const Events& pair) { return of_user[pair.first->user] < k || of_item[pair.first->item] < k; });
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

constexpr double kTestShare = 0.1;

/// Returns how many of a user's `rows` go to {training, validation, test}, by RecBole's rule for these shares. Each
/// part is rounded down; the rest is for training. A part that got none takes one from training if more than one is
/// left.
std::array<int64_t, 3> ratio_counts(int64_t rows, double validation_share, double test_share) {
  const double shares[] = {0, validation_share, test_share};
  std::array<int64_t, 3> counts{};
  for (int part : {1, 2}) counts[part] = static_cast<int64_t>(shares[part] * static_cast<double>(rows));
  counts[0] = rows - counts[1] - counts[2];
  for (int part : {2, 1}) {
    if (counts[0] <= 1) break;
    if (const double share = shares[part] * static_cast<double>(rows); share > 0 && share < 1) {
      ++counts[part];
      --counts[0];
    }
  }
  return counts;
}

void shuffle(std::span<int64_t> rows, RandomStream random) {
  for (size_t i = rows.size(); i > 1; --i) std::swap(rows[i - 1], rows[random.below(i)]);
}

/// Moves shares of each user's training rows to validation and to the test, at random.
void divide(const Interactions& interactions, const SplitOptions& options, double test_share, Split& split) {
  RowsByUser by_user(
      interactions.size(), interactions.users.size(), [&](int64_t row) { return interactions.user[row]; },
      [&](int64_t row) { return split.parts[row] == Part::kTrain; });
  for (size_t user = 0; user < by_user.num_users(); ++user) {
    const auto rows = by_user.of(user);
    shuffle(rows, RandomStream(hash_key(options.seed, 0x5711u, user)));
    const auto [train, validation, test] = ratio_counts(std::ssize(rows), options.validation_share, test_share);
    for (int64_t i = 0; i < validation; ++i) split.parts[rows[train + i]] = Part::kValidation;
    for (int64_t i = 0; i < test; ++i) split.parts[rows[train + validation + i]] = Part::kTest;
  }
}

Split split_by_ratio(const Interactions& interactions, const SplitOptions& options) {
  const double validation = 100 * options.validation_share, test = 100 * kTestShare;
  Split split{fmt::format("{:.4g}/{:.4g}/{:.4g} of each user at random", 100 - validation - test, validation, test),
              std::vector<Part>(interactions.user.size(), Part::kTrain)};
  divide(interactions, options, kTestShare, split);
  return split;
}

Split split_by_files(const Interactions& interactions, const SplitOptions& options) {
  Split split{"training, validation and test files", interactions.given_parts};
  if (interactions.has_validation) return split;
  split.protocol = fmt::format("training and test files, {:.4g}% of each user's training part for validation",
                               100 * options.validation_share);
  divide(interactions, options, /*test_share=*/0, split);
  return split;
}

/// The last two interactions of a user in time.
struct LastTwo {
  struct Event {
    EventTime time = {};
    int64_t order = 0;  // of equal times
    int64_t row = 0;
    auto operator<=>(const Event&) const = default;  // NOLINT(modernize-use-nullptr)
  };
  Event last = {}, before = {};
  int64_t count = 0;

  void add(const Event& event) {
    ++count;
    if (count == 1 || event > last) {
      before = std::exchange(last, event);
    } else if (count == 2 || event > before) {
      before = event;
    }
  }
};

Split split_by_time(const Interactions& interactions) {
  Split split{"leave-one-out by time", std::vector<Part>(interactions.user.size(), Part::kTrain)};
  std::vector<LastTwo> users(interactions.users.size());
  for (int64_t row = 0; row < interactions.size(); ++row) {
    const int64_t order = interactions.last_row.empty() ? row : interactions.last_row[row];
    users[interactions.user[row]].add({interactions.time[row], order, row});
  }
  for (const LastTwo& user : users) {
    if (user.count < 3) continue;
    split.parts[user.before.row] = Part::kValidation;
    split.parts[user.last.row] = Part::kTest;
  }
  return split;
}

}  // namespace

std::unordered_map<std::string_view, int32_t> numbers_by_id(const std::vector<Entity>& entities) {
  std::unordered_map<std::string_view, int32_t> numbers;
  numbers.reserve(entities.size());
  for (size_t i = 0; i < entities.size(); ++i) numbers.emplace(entities[i].id, static_cast<int32_t>(i));
  return numbers;
}

std::string Interactions::digest() const {
  Digest digest;
  digest.update(user.data(), user.size() * sizeof user[0]);
  digest.update(item.data(), item.size() * sizeof item[0]);
  digest.update(count.data(), count.size() * sizeof count[0]);
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
  TRAINKIT_ASSIGN_OR_RETURN(std::vector<Events> pairs, collect(ratings, options.min_rating));
  if (options.k_core > 1) prune(pairs, ratings.users.size(), ratings.items.size(), options.k_core);
  Interactions kept;
  kept.has_times = ratings.has_times;
  kept.has_validation = ratings.has_validation;
  kept.user.reserve(pairs.size());
  kept.item.reserve(pairs.size());
  kept.time.reserve(pairs.size());
  if (ratings.may_repeat) kept.last_row.reserve(pairs.size());
  std::vector<int32_t> users(ratings.users.size(), -1), items(ratings.items.size(), -1);
  for (const Events& pair : pairs) {
    kept.user.push_back(renumber(pair.first->user, users, ratings.users, kept.users));
    kept.item.push_back(renumber(pair.first->item, items, ratings.items, kept.items));
    kept.time.push_back(pair.last->time);
    if (ratings.may_repeat) kept.last_row.push_back(pair.last - ratings.rows.data());
    if (options.count_repeats) kept.count.push_back(pair.count);
    if (ratings.has_parts) kept.given_parts.push_back(pair.first->part);
  }
  if (kept.num_users() < 2 || kept.num_items() < 2) {
    return data_error("data.ratings", {.file = ratings.path},
                      fmt::format("{} of {} ratings are left after filtering, of {} users and {} items", pairs.size(),
                                  ratings.rows.size(), kept.num_users(), kept.num_items()),
                      "", "at least two of each", "lower --min_rating or --k_core");
  }
  return kept;
}

int64_t Split::count(Part part) const { return std::count(parts.begin(), parts.end(), part); }

absl::StatusOr<Split> make_split(const Interactions& interactions, const SplitOptions& options) {
  Split split;
  if (!interactions.given_parts.empty()) {
    split = split_by_files(interactions, options);
  } else if (options.mode == "ratio") {
    split = split_by_ratio(interactions, options);
  } else if (options.mode == "leave_one_out") {
    if (!interactions.has_times) {
      return data_error("data.split", {.file = "leave_one_out"}, "the ratings have no times", "",
                        "a column timestamp:float", "use --split ratio, which needs no times");
    }
    split = split_by_time(interactions);
  } else {
    TRAINKIT_ASSIGN_OR_RETURN(split, load_split(options.mode, interactions));
  }
  for (const auto& [part, name] :
       {std::pair(Part::kTrain, "training"), {Part::kValidation, "validation"}, {Part::kTest, "the test"}}) {
    if (split.count(part) > 0) continue;
    return data_error("data.split", {.file = options.mode}, fmt::format("no interactions for {}", name), "",
                      "users with at least three interactions");
  }
  return split;
}

UserItems::UserItems(const Interactions& interactions, const Split& split, std::initializer_list<Part> parts)
    : UserItems(SplitItems(interactions, split).of(parts)) {}

UserItems::UserItems(std::vector<std::vector<int32_t>> rows, int64_t num_items) : num_items_(num_items) {
  for (auto& row : rows) {
    std::sort(row.begin(), row.end());
    items_.insert(items_.end(), row.begin(), row.end());
    offsets_.push_back(size());
  }
}

SplitItems::SplitItems(const Interactions& interactions, const Split& split)
    : num_items_(interactions.num_items()),
      offsets_(interactions.users.size() + 1),
      entries_(interactions.user.size()) {
  TORCH_CHECK(num_items_ <= int64_t{1} << 30, "more than 2^30 items");
  for (const int32_t user : interactions.user) ++offsets_[user + 1];
  std::partial_sum(offsets_.begin(), offsets_.end(), offsets_.begin());
  std::vector<int64_t> next(offsets_.begin(), offsets_.end() - 1);
  for (int64_t i = 0; i < interactions.size(); ++i) {
    entries_[next[interactions.user[i]]++] =
        static_cast<uint32_t>(interactions.item[i]) << 2 | static_cast<uint32_t>(split.parts[i]);
  }
  for (size_t user = 0; user + 1 < offsets_.size(); ++user) {
    std::sort(entries_.begin() + offsets_[user], entries_.begin() + offsets_[user + 1]);
  }
}

UserItems SplitItems::of(std::initializer_list<Part> parts) const {
  bool is_wanted[4] = {};
  for (const Part part : parts) is_wanted[static_cast<size_t>(part)] = true;
  const auto wanted = [&](uint32_t entry) { return is_wanted[entry & 3]; };
  UserItems some;
  some.num_items_ = num_items_;
  some.offsets_.reserve(offsets_.size());
  some.items_.reserve(static_cast<size_t>(std::count_if(entries_.begin(), entries_.end(), wanted)));
  for (size_t user = 0; user + 1 < offsets_.size(); ++user) {
    for (int64_t at = offsets_[user]; at < offsets_[user + 1]; ++at) {
      if (wanted(entries_[at])) some.items_.push_back(static_cast<int32_t>(entries_[at] >> 2));
    }
    some.offsets_.push_back(some.size());
  }
  return some;
}

bool UserItems::contains(int64_t user, int32_t item) const {
  const auto items = of(user);
  return std::binary_search(items.begin(), items.end(), item);
}

}  // namespace trainkit::rec
