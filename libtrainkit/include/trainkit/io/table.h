#pragma once
/// Reads tables: comma-separated values (RFC 4180), other separators, JSON lines; packed with gzip or not.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainkit/io/text_file.h"

namespace trainkit {

namespace detail {
class TableRows;
}

/// How a table is written.
struct TableOptions {
  /// Errors of the table are data.<kind>.
  std::string kind = "csv";
  /// One or more characters between fields. Empty: a tab in files named .tsv or .tab, a comma in all others. A file
  /// named .jsonl or .ndjson has a JSON object in each line instead. The ending .gz does not count.
  std::string separator = {};
  /// A field that begins with a double quote ends at the next one. It may contain separators, line ends and doubled
  /// quotes. A quote inside another field is a character, as in Python's csv module.
  bool quotes = true;
  /// The first row has the names of the columns.
  bool header = true;
  /// Names of the columns of a table without a header; empty: "1", "2", ... Of JSON lines: the fields that are read,
  /// the others are ignored; empty: the fields of the first line.
  std::vector<std::string> names = {};
  /// See TextOptions.
  bool latin1 = false;
  bool control_characters = true;
  bool may_end_open = true;
  /// Longest row in bytes. Stops early on a file without line ends, and on a quote that is never closed.
  int64_t max_row_bytes = int64_t{16} << 20;
  /// The flag that sets `separator`, for errors.
  std::string separator_flag = {};
};

/// Reads the rows of a table one by one, in the memory of one row. Fields are text in UTF-8. Blanks are part of a
/// field. Skips empty lines. Not thread-safe.
///
///   TRAINKIT_ASSIGN_OR_RETURN(const auto table, TableReader::open("sales.csv.gz"));
///   TRAINKIT_ASSIGN_OR_RETURN(const size_t price, table->column("price"));
///   while (true) {
///     TRAINKIT_ASSIGN_OR_RETURN(const bool more, table->next());
///     if (!more) break;
///     TRAINKIT_ASSIGN_OR_RETURN(const double value, table->number(price));
///   }
class TableReader {
 public:
  /// Opens a table, checks the whole file as TextFile does, and reads the header. Errors, exit code 4: those of
  /// TextFile::open; data.<kind> without a header, and for a name that two columns have.
  static absl::StatusOr<std::unique_ptr<TableReader>> open(const std::string& path, const TableOptions& options = {});
  ~TableReader();

  const std::string& path() const { return file_.path(); }
  /// What the file was recognised as: "values separated by tabs, packed with gzip".
  const std::string& format() const { return format_; }
  const std::vector<std::string>& columns() const { return columns_; }
  /// Whether the file has the names of the columns: a header, or fields of JSON lines.
  bool has_names() const { return has_names_; }
  /// Returns the position of a column. Error data.<kind> if there is none; it lists the columns and the nearest name.
  absl::StatusOr<size_t> column(std::string_view name) const;
  std::optional<size_t> find(std::string_view name) const;

  /// Reads the next row; false after the last one. Errors, exit code 4, with the line: data.<kind> for a row with
  /// another number of fields or over max_row_bytes, the header again (joined files), a quote that is never closed,
  /// text after a closing quote, a carriage return alone outside quotes, and a line that is no JSON object or has a
  /// field that the first line lacks; data.damaged if the file became shorter.
  absl::StatusOr<bool> next();
  /// Starts again before the first row.
  absl::Status rewind();
  /// Line of the file, from 1, on which the row begins.
  int64_t line() const;

  /// Fields of the row without their quotes, valid until the next one.
  const std::vector<std::string_view>& fields() const;
  /// Returns a field without its quotes, valid until the next row. A number, list or object of a JSON line is its JSON
  /// text.
  std::string_view text(size_t column) const;
  /// Whether a JSON line has null in this field, or lacks it. False in other tables, where a field may be empty.
  bool is_null(size_t column) const;
  /// Parses a field without the blanks around it as an integer or a finite number. Error data.<kind> with file, line
  /// and column if it is not one, or exceeds 64 bits.
  absl::StatusOr<int64_t> integer(size_t column) const;
  absl::StatusOr<double> number(size_t column) const;

  /// Makes the error for an invalid field of the row; its text becomes `got`.
  absl::Status bad(size_t column, const std::string& problem, const std::string& expected = "",
                   const std::string& hint = "") const;
  /// Makes an error about the row.
  absl::Status bad_row(const std::string& field, const std::string& problem, std::string_view got = {},
                       const std::string& expected = "", const std::string& hint = "") const {
    return bad_line(line(), field, problem, got, expected, hint);
  }
  /// Makes an error about a line; 0 means the whole file.
  absl::Status bad_line(int64_t line, const std::string& field, const std::string& problem, std::string_view got = {},
                        const std::string& expected = "", const std::string& hint = "") const;

 private:
  TableReader(TextFile file, TableOptions options);
  std::unique_ptr<detail::TableRows> make_rows() const;
  absl::Status read_header();
  absl::Status take_header();
  absl::Status check_row() const;

  TextFile file_;
  TableOptions options_;
  bool is_json_;
  std::string format_;
  std::unique_ptr<detail::TableRows> rows_;
  std::vector<std::string> columns_;
  bool has_names_ = false;
  bool row_is_read_ = false;  // the first row, of a table without a header
};

/// A whole table in memory. Thread-safe for concurrent reads.
class Table {
 public:
  /// Reads a table. Errors: those of TableReader, and data.<kind> for a table without rows.
  static absl::StatusOr<Table> open(const std::string& path, const TableOptions& options = {});

  const std::string& path() const { return path_; }
  const std::vector<std::string>& columns() const { return columns_; }
  int64_t rows() const { return static_cast<int64_t>(lines_.size()); }

  /// Returns the position of a column. Error data.<kind> if there is none; it lists the columns and the nearest name.
  absl::StatusOr<int64_t> column(std::string_view name) const;
  bool contains(std::string_view name) const;

  /// Returns a field without its quotes.
  std::string_view at(int64_t row, int64_t column) const;
  /// Line of the file, from 1, on which `row` begins.
  int64_t line(int64_t row) const { return lines_[static_cast<size_t>(row)]; }

  /// See TableReader.
  absl::StatusOr<int64_t> integer(int64_t row, int64_t column) const;
  absl::StatusOr<double> number(int64_t row, int64_t column) const;

  /// Makes the error for an invalid field; its text becomes `got`.
  absl::Status bad(int64_t row, int64_t column, const std::string& problem, const std::string& expected = "",
                   const std::string& hint = "") const;

 private:
  Table(std::string path, std::string kind) : path_(std::move(path)), kind_(std::move(kind)) {}

  std::string path_, kind_;
  std::vector<std::string> columns_;
  std::string text_;            // text of all fields, concatenated
  std::vector<size_t> ends_;    // end of each field in text_
  std::vector<int64_t> lines_;  // first line of each row
};

/// Formats `text` as a field of a comma-separated row; quotes it if necessary. An empty text stays empty: if it is the
/// only field of its row, write `""` instead, because readers skip empty lines.
std::string csv_field(std::string_view text);

/// Splits `text` at each `separator`: n separators give n + 1 fields. Reuses the memory of `fields`.
void split_fields(std::string_view text, std::string_view separator, std::vector<std::string_view>& fields);

}  // namespace trainkit
