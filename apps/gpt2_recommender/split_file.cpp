// Writes and reads split files. Format: docs/formats/rec-split.md.
#include <absl/functional/function_ref.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "gpt2_recommender/interactions.h"
#include "gpt2_recommender/rows_by_user.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/io/table.h"
#include "trainkit/io/text_file.h"

namespace trainkit::rec {
namespace {

constexpr std::string_view kHeader = "user_id:token\titem_id:token\tpart:token";
constexpr std::string_view kProtocol = "# ";
constexpr std::string_view kParts[] = {"train", "validation", "test"};

absl::StatusOr<TextFile> open_split(const std::string& path) {
  return TextFile::open(path, {.kind = "split", .latin1 = true, .may_end_open = false});
}

/// Visits the lines of pairs. User and item are -1 if one is unknown. Returns the protocol.
absl::StatusOr<std::string> for_each_pair(
    const TextFile& file, const Interactions& of,
    absl::FunctionRef<absl::Status(int64_t line, std::string_view text, int32_t user, int32_t item, Part part)> visit) {
  const auto users = numbers_by_id(of.users), items = numbers_by_id(of.items);
  std::string protocol = "split file";
  bool has_header = false;
  std::vector<std::string_view> fields;
  TRAINKIT_RETURN_IF_ERROR(file.for_each_line([&](int64_t line, std::string_view text) -> absl::Status {
    if (line == 1 && text.starts_with(kProtocol)) {
      protocol = file.to_utf8(text.substr(kProtocol.size()));
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
    const auto user = users.find(file.to_utf8(fields[0])), item = items.find(file.to_utf8(fields[1]));
    const bool is_known = user != users.end() && item != items.end();
    return visit(line, text, is_known ? user->second : -1, is_known ? item->second : -1,
                 static_cast<Part>(part - std::begin(kParts)));
  }));
  return protocol;
}

/// Finds the rows of pairs. Lines of a split file are usually in the order of the rows, so the row after the last one
/// comes first; an index of all pairs is made when it is another.
class PairRows {
 public:
  explicit PairRows(const Interactions& interactions) : pairs_(interactions) {}

  /// Returns the row of a pair; -1 if there is none.
  int64_t find(int32_t user, int32_t item) {
    if (next_ >= pairs_.size() || pairs_.user[next_] != user || pairs_.item[next_] != item) {
      if (!by_user_) index();
      const auto rows = by_user_->of(static_cast<size_t>(user));
      const auto at = std::lower_bound(rows.begin(), rows.end(), item,
                                       [&](int64_t row, int32_t wanted) { return pairs_.item[row] < wanted; });
      if (at == rows.end() || pairs_.item[*at] != item) return -1;
      next_ = *at;
    }
    return next_++;
  }

 private:
  void index() {
    by_user_.emplace(
        pairs_.size(), pairs_.users.size(), [&](int64_t row) { return pairs_.user[row]; },
        [](int64_t) { return true; });
    for (size_t user = 0; user < by_user_->num_users(); ++user) {
      const auto rows = by_user_->of(user);
      std::sort(rows.begin(), rows.end(), [&](int64_t a, int64_t b) { return pairs_.item[a] < pairs_.item[b]; });
    }
  }

  const Interactions& pairs_;
  std::optional<RowsByUser> by_user_;
  int64_t next_ = 0;
};

constexpr int64_t kUnseen = 0;

}  // namespace

absl::Status save_split(const std::string& path, const Interactions& interactions, const Split& split) {
  std::string text = fmt::format("{}{}\n{}\n", kProtocol, split.protocol, kHeader);
  const auto for_each_field = [&](auto take) {
    for (int64_t i = 0; i < interactions.size(); ++i) {
      take(interactions.users[interactions.user[i]].id, '\t');
      take(interactions.items[interactions.item[i]].id, '\t');
      take(kParts[static_cast<int>(split.parts[i])], '\n');
    }
  };
  size_t size = text.size();
  for_each_field([&](std::string_view field, char) { size += field.size() + 1; });
  text.reserve(size);
  for_each_field([&](std::string_view field, char end) { (text += field) += end; });
  return write_file_atomically(Fs::posix(), path, text);
}

absl::StatusOr<Split> load_split(const std::string& path, const Interactions& interactions) {
  constexpr char kHint[] = "use the --min_rating and --k_core with which the split was made";
  TRAINKIT_ASSIGN_OR_RETURN(const TextFile file, open_split(path));
  PairRows rows(interactions);
  Split split{"", std::vector<Part>(interactions.user.size())};
  std::vector<int64_t> seen_in(interactions.user.size(), kUnseen);
  const auto visit = [&](int64_t line, std::string_view text, int32_t user, int32_t item, Part part) {
    const int64_t row = user < 0 ? -1 : rows.find(user, item);
    if (row < 0) {
      return file.bad(line, "", "no such pair among the interactions", text.substr(0, 80),
                      "a split of this data set and filter", kHint);
    }
    int64_t& seen = seen_in[row];
    if (seen != kUnseen) return file.bad(line, "", fmt::format("duplicate of line {}", seen));
    seen = line;
    split.parts[row] = part;
    return absl::OkStatus();
  };
  TRAINKIT_ASSIGN_OR_RETURN(split.protocol, for_each_pair(file, interactions, visit));
  const auto missing = std::find(seen_in.begin(), seen_in.end(), kUnseen);
  if (missing != seen_in.end()) {
    const auto row = missing - seen_in.begin();
    return file.bad(0, "", fmt::format("{} interactions are missing", std::count(missing, seen_in.end(), kUnseen)),
                    fmt::format("user {} and item {}", interactions.users[interactions.user[row]].id,
                                interactions.items[interactions.item[row]].id),
                    "each pair once", kHint);
  }
  return split;
}

absl::StatusOr<UserItems> seen_in_split(const std::string& path, const Interactions& catalog,
                                        std::span<const int64_t> users) {
  std::vector<std::vector<size_t>> asked(catalog.users.size());  // rows of each user
  for (size_t i = 0; i < users.size(); ++i) asked[static_cast<size_t>(users[i])].push_back(i);
  std::vector<std::vector<int32_t>> rows(users.size());
  const auto file = open_split(path);
  const auto visit = [&](int64_t line, std::string_view, int32_t user, int32_t item, Part) {
    if (user < 0) return file->bad(line, "", "not an interaction of a known user and item");
    for (const size_t row : asked[static_cast<size_t>(user)]) rows[row].push_back(item);
    return absl::OkStatus();
  };
  const absl::Status read = file.ok() ? for_each_pair(*file, catalog, visit).status() : file.status();
  if (!read.ok()) return reclassify(read, ExitCode::kWeights, "weights.catalog");
  return UserItems(std::move(rows), catalog.num_items());
}

}  // namespace trainkit::rec
