#pragma once
/// Reads text files line by line, with errors that name file and line.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trainkit/io/mapped_file.h"

namespace trainkit::rec {

/// A memory-mapped text file in UTF-8 or Latin-1. open() checks the whole file. See Note [Checks of a text file] in
/// line_file.cpp.
class LineFile {
 public:
  /// Opens and checks a file. With `may_end_open` the last line may lack its line end.
  ///
  /// Errors, exit code 4: those of MappedFile::open; data.<kind> for a file that is empty, compressed or UTF-16, for a
  /// last line without a line end (a truncated file), a NUL or other control byte, a line over 64 KiB, and for UTF-8
  /// mixed with Latin-1.
  static absl::StatusOr<LineFile> open(const std::string& path, std::string kind, bool may_end_open = false);

  /// Calls `visit` with every line without its line end (LF or CRLF). Line numbers start at 1. Stops at the first error
  /// and returns it. data.damaged if the file shrank while it was read.
  absl::Status for_each(const std::function<absl::Status(int64_t line, std::string_view text)>& visit) const;

  /// Converts a piece of a line to UTF-8.
  std::string to_utf8(std::string_view text) const;

  /// Makes an error about `line`; 0 means the whole file.
  absl::Status bad(int64_t line, const std::string& field, const std::string& problem, std::string_view got = {},
                   const std::string& expected = "", const std::string& hint = "") const;

  const std::string& path() const { return file_->path(); }
  bool is_latin1() const { return latin1_; }

 private:
  LineFile(std::shared_ptr<const MappedFile> file, std::string kind) : file_(std::move(file)), kind_(std::move(kind)) {}
  absl::Status check_lines(bool may_end_open);

  std::shared_ptr<const MappedFile> file_;
  std::string kind_;
  std::string_view text_;  // without a byte order mark
  bool latin1_ = false;
};

/// Splits `text` at each `separator`: n separators give n + 1 fields. Reuses the memory of `fields`.
void split_fields(std::string_view text, std::string_view separator, std::vector<std::string_view>& fields);

/// Returns `text` without blanks and tabs at its ends.
std::string_view trimmed(std::string_view text);

/// Parses all of `text` as a number (std::from_chars). Returns false if it is not a number or out of range.
bool parse_number(std::string_view text, int64_t& number);
/// The same for a finite number.
bool parse_number(std::string_view text, double& number);

}  // namespace trainkit::rec
