#pragma once
/// The rows of a table, from separated values or JSON lines.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "trainkit/io/table.h"

namespace trainkit::detail {

/// The rows of a table, one at a time. `file` must outlive it. Not thread-safe.
class TableRows {
 public:
  TableRows(const TextFile& file, const TableOptions& options)
      : file_(file), lines_(file.lines()), max_row_bytes_(static_cast<size_t>(options.max_row_bytes)) {}
  virtual ~TableRows() = default;
  TableRows(const TableRows&) = delete;
  TableRows& operator=(const TableRows&) = delete;

  /// Reads the next row; false after the last one.
  virtual absl::StatusOr<bool> next() = 0;

  /// Fields of the row, valid until the next one.
  const std::vector<std::string_view>& fields() const { return fields_; }
  /// Whether each field is null; empty if none is.
  const std::vector<bool>& nulls() const { return nulls_; }
  /// Names of the columns, where each row has them.
  const std::vector<std::string>& names() const { return names_; }
  /// First line of the row.
  int64_t line() const { return line_; }
  /// The row as it is in the file, or its first line.
  std::string_view source() const { return source_; }

 protected:
  /// Goes to the next line that is not empty, as UTF-8 with its line end; nullopt at the end of the file.
  absl::StatusOr<std::optional<std::string_view>> next_line();
  absl::Status bad(const std::string& problem, std::string_view got = {}, const std::string& expected = "",
                   const std::string& hint = "") const {
    return file_.bad(line_, "", problem, got, expected, hint);
  }

  const TextFile& file_;
  TextLines lines_;
  size_t max_row_bytes_;
  std::string converted_;  // a line of Latin-1 as UTF-8
  std::vector<std::string_view> fields_;
  std::deque<std::string> texts_;  // of fields that differ from the file
  std::vector<bool> nulls_;
  std::vector<std::string> names_;
  int64_t line_ = 0;
  std::string_view source_;
};

/// Makes the rows of separated values; the options name the separator.
std::unique_ptr<TableRows> separated_rows(const TextFile& file, const TableOptions& options);

/// Makes the rows of JSON lines.
std::unique_ptr<TableRows> json_rows(const TextFile& file, const TableOptions& options);

}  // namespace trainkit::detail
