// Reads tables of interactions: csv and tsv files with or without the names of their columns.
#include <absl/strings/ascii.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <list>
#include <optional>

#include "gpt2_recommender/entity_table.h"
#include "gpt2_recommender/table_header.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit::rec::detail {
namespace {

using Fields = std::vector<std::string_view>;

/// Splits lines into fields. The fields of a line are valid until the next one is split.
class RowSplitter {
 public:
  RowSplitter(const LineFile& file, char delimiter) : file_(file), delimiter_(delimiter) {}

  absl::Status split(int64_t line, std::string_view text) {
    fields.clear();
    unquoted_.clear();
    for (bool more = true; more;) {
      if (text.starts_with('"')) {
        TRAINKIT_RETURN_IF_ERROR(take_quoted(line, text));
      } else {
        const size_t end = std::min(text.find(delimiter_), text.size());
        fields.push_back(text.substr(0, end));
        text.remove_prefix(end);
      }
      more = !text.empty();
      if (more) text.remove_prefix(1);
    }
    return absl::OkStatus();
  }

  Fields fields;

 private:
  /// Takes a field in quotes from the front of `text`.
  absl::Status take_quoted(int64_t line, std::string_view& text) {
    std::string field;
    size_t at = 1;
    for (;; ++at) {
      const size_t quote = text.find('"', at);
      if (quote == text.npos) return file_.bad(line, "", "a quote is not closed on its line", text.substr(0, 60));
      field += text.substr(at, quote - at);
      at = quote + 1;
      if (at == text.size() || text[at] != '"') break;
      field += '"';
    }
    text.remove_prefix(at);
    if (!text.empty() && text.front() != delimiter_) {
      return file_.bad(line, "", "text after a closing quote", text.substr(0, 60), "a separator");
    }
    fields.push_back(unquoted_.emplace_back(std::move(field)));
    return absl::OkStatus();
  }

  const LineFile& file_;
  char delimiter_;
  std::list<std::string> unquoted_;
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

std::vector<TableColumn> columns_of(const TableOptions& options) {
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
absl::StatusOr<std::optional<size_t>> locate(const LineFile& file, const Fields& first, bool header,
                                             const TableColumn& column, size_t position) {
  const std::string& wanted = column.wanted;
  if (wanted == "none" && !column.required) return std::nullopt;
  const auto missing = [&](const std::string& problem, const std::string& expected) {
    return file.bad(1, column.noun, problem, fmt::format("{}", fmt::join(first, ", ")), expected,
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

/// Reads the rows of one table.
class TableReader {
 public:
  TableReader(const LineFile& file, const TableOptions& options)
      : file_(file),
        options_(options),
        splitter_(file, options.delimiter.value_or(file.path().ends_with(".csv") ? ',' : '\t')) {}

  absl::Status add_rows(RatingsBuilder& builder) {
    return file_.for_each([&](int64_t line, std::string_view text) -> absl::Status {
      if (text.empty() && line > 1) return absl::OkStatus();
      TRAINKIT_RETURN_IF_ERROR(splitter_.split(line, text));
      const Fields& fields = splitter_.fields;
      if (line == 1) {
        TRAINKIT_ASSIGN_OR_RETURN(const bool header, find_columns(fields, builder));
        if (header) names_ = text;
        if (header) return absl::OkStatus();
      }
      if (!names_.empty() && text == names_) return repeated_header(file_, line, text);
      TRAINKIT_RETURN_IF_ERROR(
          check_fields(file_, line, text, fields.size(), width_, "as many as line 1; see --csv_delimiter"));
      return add(line, fields, builder);
    });
  }

  bool has_values() const { return at_[2].has_value(); }
  bool has_times() const { return at_[3].has_value(); }
  /// What the run says about line 1; empty if its names are usual ones.
  const std::string& note() const { return note_; }

 private:
  /// Returns whether the line has names.
  absl::StatusOr<bool> find_columns(const Fields& first, const RatingsBuilder& builder) {
    std::vector<TableColumn> columns = columns_of(options_);
    width_ = first.size();
    const std::optional<bool> said = has_header(first, columns, options_.header);
    bool header = said.value_or(false);
    if (!said) {
      TRAINKIT_ASSIGN_OR_RETURN(header, judge(first, columns, builder));
    }
    const bool is_usual = (!columns[0].wanted.empty() || find_usual(first, columns[0])) &&
                          (!columns[1].wanted.empty() || find_usual(first, columns[1]));
    if (header) complete_pair(first, columns);
    for (size_t i = 0; i < columns.size(); ++i) {
      TRAINKIT_ASSIGN_OR_RETURN(at_[i], locate(file_, first, header, columns[i], i));
    }
    if (header && (!said || !is_usual)) {
      note_ = fmt::format("{}: line 1 has the names of the columns: users are '{}', items are '{}'", file_.path(),
                          file_.to_utf8(first[*at_[0]]), file_.to_utf8(first[*at_[1]]));
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
      const bool is_known = builder.contains(static_cast<int>(which), file_.to_utf8(trimmed(first[at[which]])));
      if (is_known) line_1.see_known_id();
    }
    RowSplitter splitter(splitter_);
    const absl::Status read = file_.for_each([&](int64_t line, std::string_view text) -> absl::Status {
      if (line == 1 || text.empty()) return absl::OkStatus();
      TRAINKIT_RETURN_IF_ERROR(splitter.split(line, text));
      line_1.see(splitter.fields);
      return line_1.is_settled() ? absl::CancelledError() : absl::OkStatus();
    });
    if (!read.ok() && !absl::IsCancelled(read)) return read;
    if (line_1.verdict() != FirstLine::Verdict::kUnclear) return line_1.verdict() == FirstLine::Verdict::kNames;
    return file_.bad(1, "", "is either the names of the columns or data", fmt::format("{}", fmt::join(first, ", ")), "",
                     "--header yes for names, --header no for data");
  }

  absl::StatusOr<std::string> id(int64_t line, const char* noun, std::string_view text) const {
    text = trimmed(text);
    if (text.empty()) return file_.bad(line, noun, "empty");
    if (text.find('\t') != text.npos) return file_.bad(line, noun, "an id contains a tab");
    return file_.to_utf8(text);
  }

  absl::Status add(int64_t line, const Fields& fields, RatingsBuilder& builder) const {
    TRAINKIT_ASSIGN_OR_RETURN(const std::string user, id(line, "user", fields[*at_[0]]));
    TRAINKIT_ASSIGN_OR_RETURN(const std::string item, id(line, "item", fields[*at_[1]]));
    const std::string hint = line == 1 ? "if line 1 has the names of the columns: --header yes" : "";
    double value = 1;
    if (has_values() && !parse_number(trimmed(fields[*at_[2]]), value)) {
      return file_.bad(line, "rating", "not a number", fields[*at_[2]], "a finite number; see --rating_column", hint);
    }
    ParsedTime time;
    if (has_times()) {
      TRAINKIT_ASSIGN_OR_RETURN(time, rating_time(file_, line, trimmed(fields[*at_[3]])));
    }
    return builder.add(line, user, item, value, time);
  }

  const LineFile& file_;
  const TableOptions& options_;
  RowSplitter splitter_;
  std::string names_;  // line 1 if it has names
  std::string note_;
  size_t width_ = 0;
  std::optional<size_t> at_[4];  // user, item, rating, time
};

}  // namespace

absl::StatusOr<Ratings> read_tables(const std::string& path, const RatingsOptions& options) {
  std::list<LineFile> files;
  RatingsBuilder builder(nullptr, nullptr, options.may_repeat.value_or(true));
  bool has_values = true, has_times = true;
  std::vector<std::string> notes;
  const std::pair<Part, std::string> parts[] = {
      {Part::kTrain, path}, {Part::kValidation, options.validation}, {Part::kTest, options.test}};
  for (const auto& [part, name] : parts) {
    if (name.empty()) continue;
    TRAINKIT_ASSIGN_OR_RETURN(LineFile file, LineFile::open(name, "ratings", /*may_end_open=*/true));
    files.push_back(std::move(file));
    builder.use(files.back(), part);
    TableReader reader(files.back(), options.table);
    TRAINKIT_RETURN_IF_ERROR(reader.add_rows(builder));
    has_values = has_values && reader.has_values();
    has_times = has_times && reader.has_times();
    if (!reader.note().empty()) notes.push_back(reader.note());
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
