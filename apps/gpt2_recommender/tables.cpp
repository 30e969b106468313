// Reads tables of interactions: csv and tsv files with or without the names of their columns.
#include <absl/strings/ascii.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "gpt2_recommender/entity_table.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit::rec::detail {
namespace {

using Fields = std::vector<std::string_view>;

bool contains_digit(std::string_view text) {
  return std::any_of(text.begin(), text.end(), [](unsigned char c) { return absl::ascii_isdigit(c); });
}

/// Judges the first line of a table by the other lines.
///
/// It is data if its user or item is in another line (other than a copy of line 1), since names of columns are no ids.
/// It has names if a column has text in line 1 and numbers everywhere else, or no digit in line 1 and digits everywhere
/// else. Otherwise a number in line 1 makes it data. Unclear: lines with text only, and lines with signs of both.
class FirstLine {
 public:
  /// `first` are the fields of line 1. `user` and `item` are the positions of these columns.
  FirstLine(const Fields& first, size_t user, size_t item) : ids_{user, item} {
    for (const std::string_view field : first) {
      const std::string_view text = trimmed(field);
      columns_.push_back({.text = std::string(text),
                          .is_number = parse_time(text).has_value(),  // also a date
                          .has_digit = contains_digit(text)});
    }
  }

  /// Takes the fields of another line.
  void see(const Fields& fields) {
    const bool is_copy =
        std::equal(fields.begin(), fields.end(), columns_.begin(), columns_.end(),
                   [](std::string_view field, const Column& column) { return trimmed(field) == column.text; });
    if (is_copy) return;
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
  /// Takes that a column of ids has the usual name of one.
  void see_usual_name() { has_name_ = true; }
  /// Takes that another table has the user or the item.
  void see_known_id() { repeats_ = true; }

  /// Whether the line has names; nullopt if that is unclear.
  std::optional<bool> has_names() const {
    if (repeats_) return false;
    const bool named = has_name_ || any_column([](const Column& c) { return c.others > 0 && c.may_be_name(); });
    // pandas names the columns of a table without names 0, 1, 2, ...
    bool counts = columns_.size() >= 3;
    for (size_t i = 0; i < columns_.size(); ++i) counts = counts && columns_[i].text == std::to_string(i);
    if (counts || named == any_column([](const Column& c) { return c.is_number; })) return std::nullopt;
    return named;
  }
  /// Whether further lines cannot change the verdict.
  bool is_settled() const {
    if (repeats_) return true;
    return !has_name_ && !any_column([](const Column& c) { return c.may_be_name(); }) && has_names() == false;
  }

 private:
  struct Column {
    std::string text;
    bool is_number = false, has_digit = false;
    int64_t others = 0;
    bool others_are_numbers = true, others_have_digits = true;

    bool may_be_name() const {
      return !text.empty() && !is_number && (others_are_numbers || (!has_digit && others_have_digits));
    }
  };
  bool any_column(bool (*is)(const Column&)) const { return std::any_of(columns_.begin(), columns_.end(), is); }

  std::vector<Column> columns_;
  size_t ids_[2];
  bool repeats_ = false, has_name_ = false;
};

/// Returns a column's name in lower case without punctuation and RecBole's type: "userid" for "user_id:token".
std::string plain_name(std::string_view name) {
  std::string plain = absl::AsciiStrToLower(std::string(name.substr(0, name.find(':'))));
  std::erase_if(plain, [](unsigned char c) { return !absl::ascii_isalnum(c); });
  return plain;
}

/// A column that a table may have.
struct TableColumn {
  const char* flag;
  const char* noun;
  /// Name or number from the flag.
  std::string wanted;
  /// Usual names, plain.
  std::vector<std::string> usual;
  bool required;
};

std::vector<TableColumn> columns_of(const TableColumns& options) {
  return {{"--user_column",
           "user",
           options.user,
           {"userid", "user", "uid", "customerid", "customer", "memberid", "reviewerid", "visitorid", "accountid"},
           true},
          {"--item_column",
           "item",
           options.item,
           {"itemid", "item", "iid", "movieid", "productid", "product", "asin", "sku", "trackid", "artistid", "bookid",
            "isbn", "articleid", "songid"},
           true},
          {"--rating_column", "rating", options.rating, {"rating", "score", "stars", "overall"}, false},
          {"--time_column", "time", options.time, {"timestamp", "time", "unixreviewtime", "ts"}, false}};
}

bool is_number(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) { return absl::ascii_isdigit(c); });
}

std::optional<size_t> find_usual(const Fields& names, const TableColumn& column) {
  for (const std::string& usual : column.usual) {
    for (size_t i = 0; i < names.size(); ++i) {
      if (plain_name(names[i]) == usual) return i;
    }
  }
  return std::nullopt;
}

/// Whether the first line has the names of the columns; nullopt if the other lines decide.
std::optional<bool> has_header(const Fields& first, const std::vector<TableColumn>& columns,
                               const std::string& header) {
  if (header != "auto") return header == "yes";
  const bool is_named = std::any_of(columns.begin(), columns.end(), [](const TableColumn& column) {
    return !column.wanted.empty() && column.wanted != "none" && !is_number(column.wanted);
  });
  if (is_named || (find_usual(first, columns[0]) && find_usual(first, columns[1]))) return true;
  if (first.size() < 2) return false;
  return std::nullopt;
}

/// Completes the columns of users and items in a table of two columns with unusual names: the other column, or the
/// users in column 1.
void complete_pair(const Fields& names, std::vector<TableColumn>& columns) {
  const auto number = [&](const TableColumn& column) -> std::string {
    if (is_number(column.wanted)) return column.wanted;
    std::optional<size_t> at = find_usual(names, column);
    if (!column.wanted.empty()) at = std::find(names.begin(), names.end(), column.wanted) - names.begin();
    return at ? std::to_string(*at + 1) : "";
  };
  const std::string user = number(columns[0]), item = number(columns[1]);
  if (names.size() != 2) return;
  if (user.empty()) columns[0].wanted = item == "1" ? "2" : "1";
  if (item.empty()) columns[1].wanted = number(columns[0]) == "1" ? "2" : "1";
}

/// Returns the position of a column; nullopt if the table does not have it.
absl::StatusOr<std::optional<size_t>> locate(const TableReader& file, const Fields& first, bool header,
                                             const TableColumn& column, size_t position) {
  const std::string& wanted = column.wanted;
  if (wanted == "none" && !column.required) return std::nullopt;
  const auto missing = [&](const std::string& problem, const std::string& expected) {
    return file.bad_line(1, column.noun, problem, fmt::format("{}", fmt::join(first, ", ")), expected,
                         fmt::format("name the column with {}, or give its number", column.flag));
  };
  if (is_number(wanted)) {
    int64_t number = 0;
    const bool is_column = parse_number(wanted, number) && number >= 1 && number <= std::ssize(first);
    if (!is_column) return missing("no column " + wanted, fmt::format("1 to {}", first.size()));
    return static_cast<size_t>(number - 1);
  }
  if (!wanted.empty()) {
    const auto at = std::find(first.begin(), first.end(), wanted);
    if (at == first.end()) return missing("no column " + wanted, "a name of line 1");
    return static_cast<size_t>(at - first.begin());
  }
  const std::optional<size_t> usual = header                    ? find_usual(first, column)
                                      : position < first.size() ? std::optional(position)
                                                                : std::nullopt;
  if (!usual && column.required) {
    return header ? missing("no column with a usual name", fmt::format("such as {}_id", column.noun))
                  : missing("too few columns", "a user and an item");
  }
  return usual;
}

/// Reads the interactions of one table. The rules for its first line need the other lines, so the table is opened
/// without a header.
class Events {
 public:
  Events(TableReader& table, const TableColumns& options) : table_(table), options_(options) {}

  absl::Status add_to(RatingsBuilder& builder) {
    TRAINKIT_ASSIGN_OR_RETURN(bool more, table_.next());
    if (!more) return absl::OkStatus();
    const std::vector<std::string> first =
        table_.has_names() ? table_.columns()
                           : std::vector<std::string>(table_.fields().begin(), table_.fields().end());
    TRAINKIT_ASSIGN_OR_RETURN(const bool header, find_columns({first.begin(), first.end()}, builder));
    TRAINKIT_RETURN_IF_ERROR(table_.rewind());
    for (bool is_first = true;; is_first = false) {
      TRAINKIT_ASSIGN_OR_RETURN(more, table_.next());
      if (!more) return absl::OkStatus();
      if (header && !table_.has_names()) {
        if (is_first) continue;
        if (std::equal(first.begin(), first.end(), table_.fields().begin())) return repeated_header();
      }
      TRAINKIT_RETURN_IF_ERROR(add(is_first, builder));
    }
  }

  bool has_values() const { return at_[2].has_value(); }
  bool has_times() const { return at_[3].has_value(); }
  /// What the run says about line 1; empty if its names are usual ones.
  const std::string& note() const { return note_; }

 private:
  absl::Status repeated_header() const {
    return table_.bad_row("", "the names of line 1 again", fmt::format("{}", fmt::join(table_.fields(), ", ")),
                          "names in line 1 alone", "if files with names were joined, remove this line");
  }

  /// Returns whether the line has names.
  absl::StatusOr<bool> find_columns(const Fields& first, const RatingsBuilder& builder) {
    std::vector<TableColumn> columns = columns_of(options_);
    const std::optional<bool> said = table_.has_names() ? true : has_header(first, columns, options_.header);
    bool header = said.value_or(false);
    if (!said) {
      TRAINKIT_ASSIGN_OR_RETURN(header, judge(first, columns, builder));
    }
    const bool is_usual = (!columns[0].wanted.empty() || find_usual(first, columns[0])) &&
                          (!columns[1].wanted.empty() || find_usual(first, columns[1]));
    if (header) complete_pair(first, columns);
    for (size_t i = 0; i < columns.size(); ++i) {
      TRAINKIT_ASSIGN_OR_RETURN(at_[i], locate(table_, first, header, columns[i], i));
    }
    if (header && (!said || !is_usual)) {
      note_ = fmt::format("{}: line 1 has the names of the columns: users are '{}', items are '{}'", table_.path(),
                          first[*at_[0]], first[*at_[1]]);
      if (!said) note_ += " (--header no: line 1 is data)";
    }
    return header;
  }

  /// Returns whether line 1 has names, from the other lines.
  absl::StatusOr<bool> judge(const Fields& first, const std::vector<TableColumn>& columns,
                             const RatingsBuilder& builder) const {
    size_t at[2] = {0, 1};
    for (size_t which : {0, 1}) {
      int64_t number = 0;
      if (parse_number(columns[which].wanted, number) && number >= 1) at[which] = static_cast<size_t>(number - 1);
    }
    if (std::max(at[0], at[1]) >= first.size()) return false;  // locate() reports it
    FirstLine line_1(first, at[0], at[1]);
    for (size_t which : {0, 1}) {
      if (find_usual(first, columns[which])) line_1.see_usual_name();
      if (builder.contains(static_cast<int>(which), trimmed(first[at[which]]))) line_1.see_known_id();
    }
    while (!line_1.is_settled()) {
      TRAINKIT_ASSIGN_OR_RETURN(const bool more, table_.next());
      if (!more) break;
      line_1.see(table_.fields());
    }
    if (const auto named = line_1.has_names()) return *named;
    return table_.bad_line(1, "", "is either the names of the columns or data",
                           fmt::format("{}", fmt::join(first, ", ")), "",
                           "--header yes for names, --header no for data");
  }

  absl::StatusOr<std::string_view> id(const char* noun, size_t column) const {
    const std::string_view text = trimmed(table_.text(column));
    if (text.empty()) return table_.bad_row(noun, "empty");
    // Other files of the run have a line per pair, with a tab between its ids.
    const auto is_control = [](unsigned char c) { return absl::ascii_iscntrl(c); };
    if (std::any_of(text.begin(), text.end(), is_control))
      return table_.bad_row(noun, "an id contains a tab or a line end", text);
    return text;
  }

  absl::Status add(bool is_first, RatingsBuilder& builder) const {
    TRAINKIT_ASSIGN_OR_RETURN(const std::string_view user, id("user", *at_[0]));
    TRAINKIT_ASSIGN_OR_RETURN(const std::string_view item, id("item", *at_[1]));
    double value = 1;
    if (has_values() && !parse_number(trimmed(table_.text(*at_[2])), value)) {
      return table_.bad_row("rating", "not a number", table_.text(*at_[2]), "a finite number; see --rating_column",
                            is_first ? "if line 1 has the names of the columns: --header yes" : "");
    }
    ParsedTime time;
    if (has_times()) {
      TRAINKIT_ASSIGN_OR_RETURN(time, rating_time(table_, *at_[3]));
    }
    return builder.add(user, item, value, time);
  }

  TableReader& table_;
  const TableColumns& options_;
  std::string note_;
  std::optional<size_t> at_[4];  // user, item, rating, time
};

absl::StatusOr<std::unique_ptr<TableReader>> open_table(const std::string& path, const TableColumns& options) {
  const bool is_csv = path.ends_with(".csv") || path.ends_with(".csv.gz");
  return TableReader::open(path, {.kind = "ratings",
                                  .separator = std::string(1, options.delimiter.value_or(is_csv ? ',' : '\t')),
                                  .header = false,
                                  .latin1 = true,
                                  .control_characters = false,
                                  .separator_flag = "--csv_delimiter"});
}

}  // namespace

absl::StatusOr<Ratings> read_tables(const std::string& path, const RatingsOptions& options) {
  std::vector<std::unique_ptr<TableReader>> files;
  RatingsBuilder builder(nullptr, nullptr, options.may_repeat.value_or(true));
  bool has_values = true, has_times = true;
  std::vector<std::string> notes;
  const std::pair<Part, std::string> parts[] = {
      {Part::kTrain, path}, {Part::kValidation, options.validation}, {Part::kTest, options.test}};
  for (const auto& [part, name] : parts) {
    if (name.empty()) continue;
    TRAINKIT_ASSIGN_OR_RETURN(auto file, open_table(name, options.table));
    files.push_back(std::move(file));
    builder.use(*files.back(), part);
    Events events(*files.back(), options.table);
    TRAINKIT_RETURN_IF_ERROR(events.add_to(builder));
    has_values = has_values && events.has_values();
    has_times = has_times && events.has_times();
    if (!events.note().empty()) notes.push_back(events.note());
  }
  TRAINKIT_ASSIGN_OR_RETURN(Ratings ratings, std::move(builder).finish("table"));
  ratings.has_values = has_values;
  ratings.has_times = has_times;
  ratings.notes.insert(ratings.notes.end(), notes.begin(), notes.end());
  ratings.has_parts = !options.test.empty();
  ratings.has_validation = !options.validation.empty();
  return ratings;
}

}  // namespace trainkit::rec::detail
