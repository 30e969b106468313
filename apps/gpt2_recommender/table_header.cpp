#include "gpt2_recommender/table_header.h"

#include <absl/strings/ascii.h>

#include <algorithm>

#include "gpt2_recommender/entity_table.h"

namespace trainkit::rec::detail {
namespace {

bool contains_digit(std::string_view text) {
  return std::any_of(text.begin(), text.end(), [](unsigned char c) { return absl::ascii_isdigit(c); });
}

}  // namespace

bool FirstLine::Column::may_be_name() const {
  if (text.empty() || is_number) return false;
  return others_are_numbers || (!has_digit && others_have_digits);
}

FirstLine::FirstLine(const std::vector<std::string_view>& first, size_t user, size_t item) : ids_{user, item} {
  for (const std::string_view field : first) {
    const std::string_view text = trimmed(field);
    columns_.push_back({.text = std::string(text),
                        .is_number = parse_time(text).has_value(),  // also a date
                        .has_digit = contains_digit(text)});
  }
}

bool FirstLine::is_copy(const std::vector<std::string_view>& fields) const {
  return std::equal(fields.begin(), fields.end(), columns_.begin(), columns_.end(),
                    [](std::string_view field, const Column& column) { return trimmed(field) == column.text; });
}

void FirstLine::see(const std::vector<std::string_view>& fields) {
  if (is_copy(fields)) return;
  for (const size_t id : ids_) {
    if (id < fields.size() && id < columns_.size() && trimmed(fields[id]) == columns_[id].text) repeats_ = true;
  }
  for (size_t i = 0; i < std::min(fields.size(), columns_.size()); ++i) {
    Column& column = columns_[i];
    const std::string_view text = trimmed(fields[i]);
    if (text.empty() || !column.may_be_name()) continue;
    ++column.others;
    column.others_are_numbers = column.others_are_numbers && parse_time(text).has_value();
    column.others_have_digits = column.others_have_digits && contains_digit(text);
  }
}

bool FirstLine::is_settled() const {
  if (repeats_) return true;
  const bool may_have_names =
      has_name_ || std::any_of(columns_.begin(), columns_.end(), [](const Column& c) { return c.may_be_name(); });
  return !may_have_names && verdict() == Verdict::kData;
}

FirstLine::Verdict FirstLine::verdict() const {
  if (repeats_) return Verdict::kData;
  const bool has_names = has_name_ || std::any_of(columns_.begin(), columns_.end(), [](const Column& column) {
                           return column.others > 0 && column.may_be_name();
                         });
  const bool has_number =
      std::any_of(columns_.begin(), columns_.end(), [](const Column& column) { return column.is_number; });
  // pandas names the columns of a table without names 0, 1, 2, ...
  bool counts = columns_.size() >= 3;
  for (size_t i = 0; i < columns_.size(); ++i) counts = counts && columns_[i].text == std::to_string(i);
  if (has_names == has_number || counts) return Verdict::kUnclear;
  return has_names ? Verdict::kNames : Verdict::kData;
}

}  // namespace trainkit::rec::detail
