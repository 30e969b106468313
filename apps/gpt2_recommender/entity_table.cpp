#include "gpt2_recommender/entity_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "trainkit/core/status.h"

namespace trainkit::rec::detail {
namespace {

constexpr const char* kNouns[] = {"user", "item"};
constexpr const char* kForms[] = {"none",        "seconds", "milliseconds",          "microseconds",
                                  "nanoseconds", "dates",   "dates with a time zone"};

constexpr size_t kTableSize = size_t{1} << 22;

/// Returns the place of an id in the table of NumbersById; nullopt for an id that is not such a number as it is written
/// without leading zeros.
std::optional<size_t> place_of(std::string_view id) {
  constexpr size_t kMostDigits = 7;
  if (id.empty() || id.size() > kMostDigits || (id.front() == '0' && id.size() > 1)) return std::nullopt;
  size_t place = 0;
  for (const char c : id) {
    if (c < '0' || c > '9') return std::nullopt;
    place = 10 * place + static_cast<size_t>(c - '0');
  }
  return place < kTableSize ? std::optional(place) : std::nullopt;
}

}  // namespace

int32_t NumbersById::find(std::string_view id) const {
  if (const auto place = place_of(id)) return *place < table_.size() ? table_[*place] : kNone;
  const auto at = others_.find(id);
  return at == others_.end() ? kNone : at->second;
}

void NumbersById::add(std::string_view id, int32_t number) {
  ++size_;
  if (const auto place = place_of(id)) {
    if (*place >= table_.size()) table_.resize(*place + 1, kNone);
    table_[*place] = number;
  } else {
    others_.emplace(id, number);
  }
}

TableOptions published_table(const char* kind, const char* separator) {
  return {.kind = kind,
          .separator = separator,
          .quotes = false,
          .latin1 = true,
          .control_characters = false,
          .may_end_open = false,
          .max_row_bytes = int64_t{64} << 10};
}

absl::Status EntityTable::add(const TableReader& row, std::string_view id, std::string text) {
  if (const int32_t known = by_id_.find(id); known != NumbersById::kNone) {
    const int64_t line = rows_[static_cast<size_t>(known)].line;
    return row.bad_row(noun_, fmt::format("duplicate of line {}", line), id, "each id once");
  }
  by_id_.add(id, static_cast<int32_t>(rows_.size()));
  rows_.push_back({{std::string(id), std::move(text)}, row.line()});
  return absl::OkStatus();
}

const Entity* EntityTable::find(std::string_view id) const {
  const int32_t known = by_id_.find(id);
  return known == NumbersById::kNone ? nullptr : &rows_[static_cast<size_t>(known)].entity;
}

std::string EntityTable::unused_note(const std::vector<Entity>& used) const {
  std::unordered_set<std::string_view> ids;
  for (const Entity& entity : used) ids.insert(entity.id);
  const auto is_unused = [&](const Row& row) { return !ids.contains(row.entity.id); };
  const auto first = std::find_if(rows_.begin(), rows_.end(), is_unused);
  if (first == rows_.end()) return {};
  const auto more = std::count_if(first + 1, rows_.end(), is_unused);
  return fmt::format("{}:{}: {} {} has no rating{}", path_, first->line, noun_, first->entity.id,
                     more > 0 ? fmt::format(", and {} more", more) : "");
}

void RatingsBuilder::use(const TableReader& file, Part part) {
  files_[static_cast<size_t>(part)] = &file;
  part_ = part;
}

absl::StatusOr<int32_t> RatingsBuilder::number(int which, std::string_view id) {
  NumbersById& numbers = numbers_[which];
  if (const int32_t seen = numbers.find(id); seen != NumbersById::kNone) return seen;
  Entity entity{std::string(id), {}};
  if (const EntityTable* table = tables_[which]) {
    const Entity* known = table->find(id);
    if (!known) return file_of(part_).bad_row(kNouns[which], "not in " + table->path(), id, "an id of that file");
    entity = *known;
  }
  (which == 0 ? ratings_.users : ratings_.items).push_back(std::move(entity));
  numbers.add(id, numbers.size());
  return numbers.size() - 1;
}

absl::Status RatingsBuilder::add(std::string_view user, std::string_view item, double value, const ParsedTime& time) {
  Rating row{.value = static_cast<float>(value), .part = part_, .time = time.time};
  TRAINKIT_ASSIGN_OR_RETURN(row.user, number(0, user));
  TRAINKIT_ASSIGN_OR_RETURN(row.item, number(1, item));
  if (ratings_.rows.empty()) {
    first_form_ = time.form;
    first_time_ = time.text;
  }
  if (time.form != first_form_) {
    const auto [low, high] = std::minmax(time.form, first_form_);
    return file_of(part_).bad_row("timestamp",
                                  fmt::format("{} and {} are mixed (line {} has {})", kForms[static_cast<size_t>(low)],
                                              kForms[static_cast<size_t>(high)], lines_.front(), first_time_),
                                  time.text, "one unit or form for the whole file");
  }
  ratings_.rows.push_back(row);
  lines_.push_back(file_of(part_).line());
  return absl::OkStatus();
}

absl::Status RatingsBuilder::check_pairs() const {
  // Report the duplicate that is first in the file.
  int64_t first = 0, second = std::ssize(ratings_.rows);
  for_each_repeat(ratings_, -std::numeric_limits<double>::infinity(), [&](int64_t row, int64_t earlier) {
    if (row < second) std::tie(first, second) = std::pair(earlier, row);
  });
  if (second == std::ssize(ratings_.rows)) return absl::OkStatus();
  const Rating& row = ratings_.rows[static_cast<size_t>(second)];
  return file_of(row.part).bad_line(
      lines_[static_cast<size_t>(second)], "",
      fmt::format("user {} and item {}: duplicate of line {}", ratings_.users[row.user].id, ratings_.items[row.item].id,
                  lines_[static_cast<size_t>(first)]),
      "", "each pair once");
}

absl::StatusOr<Ratings> RatingsBuilder::finish(std::string format) && {
  const TableReader& file = file_of(Part::kTrain);
  if (!ratings_.may_repeat) TRAINKIT_RETURN_IF_ERROR(check_pairs());
  if (ratings_.rows.empty()) return file.bad_line(0, "", "the file has no rating");
  if (ratings_.users.size() < 2)
    return file.bad_line(0, "user", "all ratings are of one user", ratings_.users[0].id, "two or more");
  if (ratings_.items.size() < 2)
    return file.bad_line(0, "item", "all ratings are of one item", ratings_.items[0].id, "two or more");
  ratings_.format = std::move(format);
  ratings_.path = file.path();
  for (int which : {0, 1}) {
    if (!tables_[which]) continue;
    std::string note = tables_[which]->unused_note(which == 0 ? ratings_.users : ratings_.items);
    if (!note.empty()) ratings_.notes.push_back(std::move(note));
  }
  return std::move(ratings_);
}

absl::StatusOr<ParsedTime> rating_time(const TableReader& row, size_t column) {
  const std::string_view text = trimmed(row.text(column));
  if (const auto time = parse_time(text)) return *time;
  return row.bad_row("timestamp", "not a time", text, "a number since 1970, or a date such as 2024-05-01T12:30:00Z");
}

}  // namespace trainkit::rec::detail
