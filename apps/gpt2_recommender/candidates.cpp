// Draws and reads the items that a user's positives are ranked against.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "gpt2_recommender/ranking.h"
#include "trainkit/core/data_error.h"
#include "trainkit/core/error.h"
#include "trainkit/core/random.h"
#include "trainkit/core/status.h"
#include "trainkit/io/table.h"

namespace trainkit::rec {
namespace {

/// Returns the positives and the sampled items of a user, each once. Per user it draws without replacement by a partial
/// Fisher-Yates shuffle; per positive with replacement, and removes duplicates.
std::vector<int32_t> draw_candidates(const OtherItems& others, std::span<const int32_t> positives,
                                     const RankingOptions& options, RandomStream random) {
  std::vector<int32_t> drawn(positives.begin(), positives.end());
  const int64_t count = options.sampled_negatives;
  if (options.sampled_per_user) {
    std::unordered_map<size_t, size_t> moved;  // places of the shuffle that have another entry than their own
    const auto entry = [&](size_t place) { return moved.try_emplace(place, place).first->second; };
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
      const size_t j = i + random.below(others.size() - i), own = entry(i);
      drawn.push_back(others[entry(j)]);
      moved[j] = own;
    }
    return drawn;
  }
  for (int64_t i = 0; i < count * static_cast<int64_t>(positives.size()); ++i) {
    drawn.push_back(others[random.below(others.size())]);
  }
  return drawn;
}

/// Candidates of each user; none for a user without a positive.
using CandidateRows = std::vector<std::vector<int32_t>>;

UserItems each_once(CandidateRows rows, int64_t num_items) {
  for (auto& items : rows) {
    std::sort(items.begin(), items.end());
    items.erase(std::unique(items.begin(), items.end()), items.end());
  }
  return UserItems(std::move(rows), num_items);
}

/// Returns the user of the first field: "7", or "(7,25)" with an item.
std::string_view user_of(std::string_view field) {
  const size_t comma = field.find(',');
  const bool is_pair = field.starts_with('(') && field.ends_with(')') && comma != field.npos;
  return is_pair ? field.substr(1, comma - 1) : field;
}

}  // namespace

int32_t OtherItems::operator[](size_t at) const {
  // chosen_[i] - i of them are below chosen_[i].
  size_t low = 0, high = chosen_.size();
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (static_cast<size_t>(chosen_[middle]) - middle > at) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return static_cast<int32_t>(at + low);
}

absl::StatusOr<UserItems> sampled_candidates(const Interactions& interactions, const SplitItems& items,
                                             const UserItems& positives, const RankingOptions& options) {
  const UserItems known = options.part == Part::kTest || options.sampled_per_user
                              ? items.of({Part::kTrain, Part::kValidation, Part::kTest})
                              : items.of({Part::kTrain, Part::kValidation});
  const int64_t needed = options.sampled_per_user ? options.sampled_negatives : 1;
  CandidateRows rows(interactions.users.size());
  for (int64_t user = 0; user < known.num_users(); ++user) {
    const auto wanted = positives.of(user);
    if (wanted.empty()) continue;
    const OtherItems others(known.of(user), known.num_items());
    if (std::ssize(others) < needed) {
      return to_status({.exit_code = ExitCode::kData,
                        .id = "data.split",
                        .where = fmt::format("user {}", interactions.users[user].id),
                        .problem = fmt::format("too few items for {} sampled negatives", options.sampled_negatives),
                        .got = fmt::format("{} items without an interaction", others.size()),
                        .expected = fmt::format("at least {}", needed),
                        .hint = "rank against all items: --sampled_negatives 0"});
    }
    rows[static_cast<size_t>(user)] =
        draw_candidates(others, wanted, options, RandomStream(hash_key(options.seed, 0xca4du, user)));
  }
  return each_once(std::move(rows), known.num_items());
}

absl::StatusOr<UserItems> listed_candidates(const Interactions& interactions, const UserItems& positives,
                                            const std::string& path) {
  TRAINKIT_ASSIGN_OR_RETURN(CandidateRows listed, read_negatives(path, interactions));
  for (int64_t user = 0; user < positives.num_users(); ++user) {
    const auto wanted = positives.of(user);
    std::vector<int32_t>& items = listed[static_cast<size_t>(user)];
    if (wanted.empty()) {
      items.clear();
    } else if (items.empty()) {
      return data_error("data.negatives", {.file = path},
                        fmt::format("no line of user {}", interactions.users[user].id), "",
                        "a line for each user with an interaction in this part");
    }
    items.insert(items.end(), wanted.begin(), wanted.end());
  }
  return each_once(std::move(listed), positives.num_items());
}

absl::StatusOr<std::vector<std::vector<int32_t>>> read_negatives(const std::string& path,
                                                                 const Interactions& interactions) {
  TRAINKIT_ASSIGN_OR_RETURN(const TextFile file, TextFile::open(path, {.kind = "negatives", .latin1 = true}));
  const auto users = numbers_by_id(interactions.users), items = numbers_by_id(interactions.items);
  std::vector<std::vector<int32_t>> listed(interactions.users.size());
  std::vector<std::string_view> fields;
  const char* const hint = "negatives are users and items of the data after --min_rating and --k_core";
  TRAINKIT_RETURN_IF_ERROR(file.for_each_line([&](int64_t line, std::string_view text) -> absl::Status {
    if (text.empty()) return absl::OkStatus();
    split_fields(text, text.find('\t') == text.npos ? "," : "\t", fields);
    if (fields.size() < 2) return file.bad(line, "", "no item", text.substr(0, 60), "a user and items");
    const std::string_view name = trimmed(user_of(trimmed(fields[0])));
    const auto user = users.find(file.to_utf8(name));
    if (user == users.end()) return file.bad(line, "user", "unknown", name, "a user of the data", hint);
    for (size_t i = 1; i < fields.size(); ++i) {
      const std::string_view id = trimmed(fields[i]);
      const auto item = items.find(file.to_utf8(id));
      if (item == items.end()) return file.bad(line, "item", "unknown", id, "an item of the data", hint);
      listed[static_cast<size_t>(user->second)].push_back(item->second);
    }
    return absl::OkStatus();
  }));
  return listed;
}

}  // namespace trainkit::rec
