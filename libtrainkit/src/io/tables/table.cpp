#include "trainkit/io/table.h"

#include <algorithm>

#include "io/tables/cells.h"
#include "trainkit/core/data_error.h"
#include "trainkit/core/status.h"

namespace trainkit {

absl::StatusOr<Table> Table::open(const std::string& path, const TableOptions& options) {
  TRAINKIT_ASSIGN_OR_RETURN(const auto reader, TableReader::open(path, options));
  Table table(path, options.kind);
  table.columns_ = reader->columns();
  while (true) {
    TRAINKIT_ASSIGN_OR_RETURN(const bool more, reader->next());
    if (!more) break;
    table.lines_.push_back(reader->line());
    for (size_t column = 0; column < table.columns_.size(); ++column) {
      table.text_ += reader->text(column);
      table.ends_.push_back(table.text_.size());
    }
  }
  if (!table.lines_.empty()) return table;
  return data_error("data." + options.kind, {.file = path}, "no rows after the header", "0 rows", "at least 1 row");
}

bool Table::contains(std::string_view name) const {
  return std::find(columns_.begin(), columns_.end(), name) != columns_.end();
}

absl::StatusOr<int64_t> Table::column(std::string_view name) const {
  const auto found = std::find(columns_.begin(), columns_.end(), name);
  if (found != columns_.end()) return found - columns_.begin();
  return detail::no_such_column(path_, kind_, columns_, name);
}

std::string_view Table::at(int64_t row, int64_t column) const {
  const size_t i = static_cast<size_t>(row) * columns_.size() + static_cast<size_t>(column);
  const size_t begin = i == 0 ? 0 : ends_[i - 1];
  return std::string_view(text_).substr(begin, ends_[i] - begin);
}

absl::StatusOr<int64_t> Table::integer(int64_t row, int64_t column) const {
  return detail::integer_of(at(row, column), [&](auto... what) { return bad(row, column, what...); });
}

absl::StatusOr<double> Table::number(int64_t row, int64_t column) const {
  return detail::number_of(at(row, column), [&](auto... what) { return bad(row, column, what...); });
}

absl::Status Table::bad(int64_t row, int64_t column, const std::string& problem, const std::string& expected,
                        const std::string& hint) const {
  return data_error("data." + kind_, {.file = path_, .line = line(row), .field = columns_[static_cast<size_t>(column)]},
                    problem, at(row, column), expected, hint);
}

std::string csv_field(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

}  // namespace trainkit
