#pragma once
/// Reads tables of comma-separated values (RFC 4180).

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trainkit {

struct CsvOptions {
  char delimiter = ',';
  /// Longest row in bytes. Stops early on a file without line ends.
  int64_t max_row_bytes = int64_t{16} << 20;
};

/// Holds a whole csv file in memory: a header, then rows with the same number of fields. Errors name the line of a
/// field.
///
/// Quoted fields may contain delimiters, doubled quotes, carriage returns and line ends. Blanks are part of a field.
/// Accepts a byte order mark and a last line without a line end; skips empty lines. Thread-safe for concurrent reads.
class CsvFile {
 public:
  /// Opens and parses a file. Errors have exit code 4: those of MappedFile::open, and data.csv with the line for these
  /// faults:
  ///   an empty file, or one without rows; gzip, UTF-16, invalid UTF-8, a NUL byte
  ///   a quote inside an unquoted field; a quote that is never closed; a carriage return alone outside quotes
  ///   a row whose number of fields differs from the header; a row over max_row_bytes; duplicate column names
  /// data.damaged if the file became shorter during the read.
  static absl::StatusOr<CsvFile> open(const std::string& path, const CsvOptions& options = {});

  const std::string& path() const { return path_; }
  const std::vector<std::string>& columns() const { return columns_; }
  int64_t rows() const { return static_cast<int64_t>(lines_.size()); }

  /// Returns the position of a column. Error data.csv if there is none; it lists the columns and the nearest name.
  absl::StatusOr<int64_t> column(std::string_view name) const;
  bool contains(std::string_view name) const;

  /// Returns a field without its quotes.
  std::string_view at(int64_t row, int64_t column) const;
  /// Line of the file, from 1, on which `row` begins.
  int64_t line(int64_t row) const { return lines_[static_cast<size_t>(row)]; }

  /// Parses a whole field as an integer. Error data.csv with file, line and column if it is not one or exceeds 64 bits.
  absl::StatusOr<int64_t> integer(int64_t row, int64_t column) const;

  /// Returns the Status for an invalid field; its text becomes `got`.
  absl::Status bad(int64_t row, int64_t column, const std::string& problem, const std::string& expected = "",
                   const std::string& hint = "") const;

 private:
  friend class CsvParser;
  explicit CsvFile(std::string path) : path_(std::move(path)) {}

  std::string path_;
  std::vector<std::string> columns_;
  std::string text_;            // text of all fields, concatenated
  std::vector<size_t> ends_;    // end of each field in text_
  std::vector<int64_t> lines_;  // first line of each row
};

/// Formats `text` as a field of a comma-separated row; quotes it if necessary. An empty text stays empty: if it is the
/// only field of its row, write `""` instead, because CsvFile skips empty lines.
std::string csv_field(std::string_view text);

}  // namespace trainkit
