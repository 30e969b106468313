#include <absl/strings/ascii.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "io/tables/cells.h"
#include "io/tables/table_rows.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/io/table.h"

namespace trainkit {
namespace {

bool has_ending(const std::string& path, std::initializer_list<std::string_view> endings) {
  std::string name = absl::AsciiStrToLower(path);
  if (name.ends_with(".gz")) name.resize(name.size() - 3);
  return std::any_of(endings.begin(), endings.end(), [&](std::string_view ending) { return name.ends_with(ending); });
}

/// Returns a separator in words.
std::string name_of_separator(const std::string& separator) {
  if (separator == ",") return "commas";
  if (separator == "\t") return "tabs";
  if (separator == ";") return "semicolons";
  return fmt::format("'{}'", separator);
}

TextOptions text_options(const TableOptions& options) {
  return {.kind = options.kind,
          .latin1 = options.latin1,
          .control_characters = options.control_characters,
          .may_end_open = options.may_end_open,
          .max_line_bytes = options.max_row_bytes};
}

}  // namespace

absl::StatusOr<std::unique_ptr<TableReader>> TableReader::open(const std::string& path, const TableOptions& options) {
  TRAINKIT_ASSIGN_OR_RETURN(TextFile file, TextFile::open(path, text_options(options)));
  std::unique_ptr<TableReader> reader(new TableReader(std::move(file), options));
  TRAINKIT_RETURN_IF_ERROR(reader->read_header());
  return reader;
}

TableReader::TableReader(TextFile file, TableOptions options)
    : file_(std::move(file)), options_(std::move(options)), is_json_(has_ending(path(), {".jsonl", ".ndjson"})) {
  std::string& separator = options_.separator;
  if (separator.empty()) separator = has_ending(path(), {".tsv", ".tab"}) ? "\t" : ",";
  format_ = is_json_ ? "JSON lines" : "values separated by " + name_of_separator(separator);
  if (file_.is_packed()) format_ += ", packed with gzip";
}

TableReader::~TableReader() = default;

std::unique_ptr<detail::TableRows> TableReader::make_rows() const {
  return is_json_ ? detail::json_rows(file_, options_) : detail::separated_rows(file_, options_);
}

absl::Status TableReader::read_header() {
  rows_ = make_rows();
  has_names_ = is_json_ || options_.header;
  row_is_read_ = false;
  if (!has_names_ && !options_.names.empty()) {
    columns_ = options_.names;
    return absl::OkStatus();
  }
  TRAINKIT_ASSIGN_OR_RETURN(const bool found, rows_->next());
  if (!found) return file_.bad(0, "", "no header", "", "a line with the columns' names");
  row_is_read_ = is_json_ || !options_.header;
  columns_ = rows_->names();
  if (!row_is_read_) return take_header();
  for (size_t i = columns_.size(); i < fields().size(); ++i) columns_.push_back(std::to_string(i + 1));
  return absl::OkStatus();
}

absl::Status TableReader::take_header() {
  for (const std::string_view name : fields()) {
    if (find(name)) return bad_row("", "duplicate column name", name);
    columns_.emplace_back(name);
  }
  const std::string& first = columns_.front();
  const size_t other = first.find_first_of(";\t,");
  if (columns_.size() > 1 || rows_->source().starts_with('"') || other == first.npos) return absl::OkStatus();
  return bad_row("", "unexpected separator", first.substr(other, 1), format_,
                 options_.separator_flag.empty() ? "" : options_.separator_flag + " names the separator");
}

absl::Status TableReader::rewind() { return read_header(); }

absl::StatusOr<bool> TableReader::next() {
  if (!std::exchange(row_is_read_, false)) {
    TRAINKIT_ASSIGN_OR_RETURN(const bool found, rows_->next());
    if (!found) return false;
  }
  TRAINKIT_RETURN_IF_ERROR(check_row());
  return true;
}

absl::Status TableReader::check_row() const {
  const size_t count = fields().size();
  if (count != columns_.size()) {
    return bad_row("", fmt::format("{} field{}", count, count == 1 ? "" : "s"), rows_->source().substr(0, 80),
                   fmt::format("{}: {}{}", columns_.size(), fmt::join(columns_, ", "),
                               options_.separator_flag.empty() ? "" : "; see " + options_.separator_flag));
  }
  const bool is_header =
      !is_json_ && has_names_ && count > 1 && std::equal(fields().begin(), fields().end(), columns_.begin());
  if (!is_header) return absl::OkStatus();
  return bad_row("", "the names of the first line again", rows_->source().substr(0, 80), "names in the first line only",
                 "if files with names were joined, remove this line");
}

int64_t TableReader::line() const { return rows_->line(); }

const std::vector<std::string_view>& TableReader::fields() const { return rows_->fields(); }

std::string_view TableReader::text(size_t column) const { return fields()[column]; }

bool TableReader::is_null(size_t column) const { return !rows_->nulls().empty() && rows_->nulls()[column]; }

absl::StatusOr<int64_t> TableReader::integer(size_t column) const {
  return detail::integer_of(text(column), [&](auto... what) { return bad(column, what...); });
}

absl::StatusOr<double> TableReader::number(size_t column) const {
  return detail::number_of(text(column), [&](auto... what) { return bad(column, what...); });
}

std::optional<size_t> TableReader::find(std::string_view name) const {
  const auto found = std::find(columns_.begin(), columns_.end(), name);
  return found == columns_.end() ? std::nullopt : std::optional(static_cast<size_t>(found - columns_.begin()));
}

absl::StatusOr<size_t> TableReader::column(std::string_view name) const {
  if (const auto found = find(name)) return *found;
  return detail::no_such_column(path(), options_.kind, columns_, name);
}

absl::Status TableReader::bad(size_t column, const std::string& problem, const std::string& expected,
                              const std::string& hint) const {
  return file_.bad(line(), columns_[column], problem, text(column), expected, hint);
}

absl::Status TableReader::bad_line(int64_t line, const std::string& field, const std::string& problem,
                                   std::string_view got, const std::string& expected, const std::string& hint) const {
  return file_.bad(line, field, problem, got, expected, hint);
}

}  // namespace trainkit
