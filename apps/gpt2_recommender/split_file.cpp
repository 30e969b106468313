// Writes and reads split files. Format: docs/formats/rec-split.md.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "gpt2_recommender/interactions.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/io/table.h"

namespace trainkit::rec {
namespace {

constexpr std::string_view kHeader = "user_id:token\titem_id:token\tpart:token";
constexpr std::string_view kProtocol = "# ";
constexpr std::string_view kParts[] = {"train", "validation", "test"};

std::unordered_map<std::string, int32_t> numbers_of(const std::vector<Entity>& entities) {
  std::unordered_map<std::string, int32_t> numbers;
  for (const Entity& entity : entities) numbers.emplace(entity.id, static_cast<int32_t>(numbers.size()));
  return numbers;
}

/// Finds the row of an interaction by the ids of its user and item.
class Pairs {
 public:
  explicit Pairs(const Interactions& interactions)
      : users_(numbers_of(interactions.users)), items_(numbers_of(interactions.items)) {
    rows_.reserve(interactions.user.size());
    for (int64_t i = 0; i < interactions.size(); ++i) rows_[key(interactions.user[i], interactions.item[i])] = i;
  }
  std::optional<int64_t> find(const std::string& user, const std::string& item) const {
    const auto u = users_.find(user), i = items_.find(item);
    if (u == users_.end() || i == items_.end()) return std::nullopt;
    const auto row = rows_.find(key(u->second, i->second));
    return row == rows_.end() ? std::nullopt : std::optional(row->second);
  }

 private:
  static int64_t key(int32_t user, int32_t item) { return int64_t{user} << 32 | item; }
  std::unordered_map<std::string, int32_t> users_, items_;
  std::unordered_map<int64_t, int64_t> rows_;
};

constexpr int64_t kUnseen = 0;

}  // namespace

absl::Status save_split(const std::string& path, const Interactions& interactions, const Split& split) {
  std::string text = fmt::format("{}{}\n{}\n", kProtocol, split.protocol, kHeader);
  for (int64_t i = 0; i < interactions.size(); ++i) {
    text += fmt::format("{}\t{}\t{}\n", interactions.users[interactions.user[i]].id,
                        interactions.items[interactions.item[i]].id, kParts[static_cast<int>(split.parts[i])]);
  }
  return write_file_atomically(Fs::posix(), path, text);
}

absl::StatusOr<Split> load_split(const std::string& path, const Interactions& interactions) {
  TRAINKIT_ASSIGN_OR_RETURN(const TextFile file,
                            TextFile::open(path, {.kind = "split", .latin1 = true, .may_end_open = false}));
  const Pairs pairs(interactions);
  Split split{"split file", std::vector<Part>(interactions.user.size())};
  std::vector<int64_t> seen_in(interactions.user.size(), kUnseen);
  bool has_header = false;
  std::vector<std::string_view> fields;
  TRAINKIT_RETURN_IF_ERROR(file.for_each_line([&](int64_t line, std::string_view text) -> absl::Status {
    if (line == 1 && text.starts_with(kProtocol)) {
      split.protocol = file.to_utf8(text.substr(kProtocol.size()));
      return absl::OkStatus();
    }
    if (!has_header) {
      has_header = true;
      return text == kHeader
                 ? absl::OkStatus()
                 : file.bad(line, "", "not the header of a split file", text.substr(0, 80), std::string(kHeader));
    }
    split_fields(text, "\t", fields);
    if (fields.size() != 3) return file.bad(line, "", fmt::format("{} fields", fields.size()), text.substr(0, 80), "3");
    const auto part = std::find(std::begin(kParts), std::end(kParts), fields[2]);
    if (part == std::end(kParts)) return file.bad(line, "part", "unknown", fields[2], "train, validation or test");
    const auto row = pairs.find(file.to_utf8(fields[0]), file.to_utf8(fields[1]));
    if (!row) {
      return file.bad(line, "", "no such pair among the interactions", text.substr(0, 80),
                      "a split of this data set and filter",
                      "use the --min_rating and --k_core with which the split was made");
    }
    if (seen_in[*row] != kUnseen) return file.bad(line, "", fmt::format("duplicate of line {}", seen_in[*row]));
    seen_in[*row] = line;
    split.parts[*row] = static_cast<Part>(part - std::begin(kParts));
    return absl::OkStatus();
  }));
  const auto missing = std::find(seen_in.begin(), seen_in.end(), kUnseen);
  if (missing != seen_in.end()) {
    const auto row = missing - seen_in.begin();
    return file.bad(0, "", fmt::format("{} interactions are missing", std::count(missing, seen_in.end(), kUnseen)),
                    fmt::format("user {} and item {}", interactions.users[interactions.user[row]].id,
                                interactions.items[interactions.item[row]].id),
                    "each pair once", "use the --min_rating and --k_core with which the split was made");
  }
  return split;
}

}  // namespace trainkit::rec
