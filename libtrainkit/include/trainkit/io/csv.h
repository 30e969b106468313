#pragma once
/// Tables of text: comma-separated values, RFC 4180.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trainkit {

struct CsvOptions {
  char delimiter = ',';
  /// A row may not be longer; a file without line ends is then no reason to read all of it.
  int64_t max_row_bytes = int64_t{16} << 20;
};

/// A whole csv file in memory: a header, then rows of as many fields, each of which can be blamed.
///
/// Quoted fields may hold delimiters, quotes (doubled) and line ends. Blanks belong to their field. A byte order mark
/// and a last line without an end are taken; empty lines are left out. Threads: concurrent reads are safe.
class CsvFile {
 public:
  /// Errors of exit code 4: those of MappedFile::open, and data.csv with the line for: an empty file, one without rows,
  /// gzip, UTF-16, text that is not UTF-8, a NUL, a quote inside a bare field, one that is never closed, a line that
  /// ends in a carriage return alone, a row of another number of fields, one longer than max_row_bytes, two columns of
  /// one name. data.damaged if the file shrank meanwhile.
  static absl::StatusOr<CsvFile> open(const std::string& path, const CsvOptions& options = {});

  const std::string& path() const { return path_; }
  const std::vector<std::string>& columns() const { return columns_; }
  int64_t rows() const { return static_cast<int64_t>(lines_.size()); }

  /// The position of a column. data.csv, which lists the columns and names the nearest, if there is none.
  absl::StatusOr<int64_t> column(std::string_view name) const;
  bool contains(std::string_view name) const;

  /// A field, without its quotes.
  std::string_view at(int64_t row, int64_t column) const;
  /// The line of the file on which `row` begins, from 1.
  int64_t line(int64_t row) const { return lines_[static_cast<size_t>(row)]; }

  /// A field as a number, all of it. data.csv with file, line and column if it is none or does not fit.
  absl::StatusOr<int64_t> integer(int64_t row, int64_t column) const;

  /// The Status for what is wrong with a field: `got` is the field itself.
  absl::Status bad(int64_t row, int64_t column, const std::string& problem, const std::string& expected = "",
                   const std::string& hint = "") const;

 private:
  friend class CsvParser;
  explicit CsvFile(std::string path) : path_(std::move(path)) {}

  std::string path_;
  std::vector<std::string> columns_;
  std::string text_;            // of all fields, one after the other
  std::vector<size_t> ends_;    // of each field in text_
  std::vector<int64_t> lines_;  // on which each row begins
};

/// `text` as a field of a comma-separated file that is written: quoted where it must be.
std::string csv_field(std::string_view text);

}  // namespace trainkit
