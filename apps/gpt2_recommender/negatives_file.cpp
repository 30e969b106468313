// Reads files of negatives for evaluation. Format: ranking.h.
#include "gpt2_recommender/ranking.h"
#include "trainkit/core/status.h"
#include "trainkit/io/table.h"

namespace trainkit::rec {
namespace {

/// Returns the user of the first field: "7", or "(7,25)" with an item.
std::string_view user_of(std::string_view field) {
  const size_t comma = field.find(',');
  const bool is_pair = field.starts_with('(') && field.ends_with(')') && comma != field.npos;
  return is_pair ? field.substr(1, comma - 1) : field;
}

}  // namespace

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
