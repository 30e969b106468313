#pragma once
/// Text files of lines, each of which can be blamed.

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

/// A file of lines, in UTF-8 or Latin-1, mapped and checked before the first line is looked at.
class LineFile {
 public:
  /// Errors of exit code 4: those of MappedFile::open; "data.<kind>" with the line for a file that is empty, compressed
  /// or UTF-16, for a last line without its end (the file was cut), a NUL or another control byte, a line over 64 KiB,
  /// and for lines in UTF-8 beside lines in Latin-1.
  static absl::StatusOr<LineFile> open(const std::string& path, std::string kind);

  /// Calls `visit` with every line, from number 1, without its end (LF or CRLF); the first error ends it and is
  /// returned. data.damaged if the file shrank meanwhile.
  absl::Status for_each(const std::function<absl::Status(int64_t line, std::string_view text)>& visit) const;

  /// A piece of a line as UTF-8.
  std::string to_utf8(std::string_view text) const;

  /// The Status for what is wrong with `line` (0: the file as a whole).
  absl::Status bad(int64_t line, const std::string& field, const std::string& problem, std::string_view got = {},
                   const std::string& expected = "", const std::string& hint = "") const;

  const std::string& path() const { return file_->path(); }
  bool is_latin1() const { return latin1_; }

 private:
  LineFile(std::shared_ptr<const MappedFile> file, std::string kind) : file_(std::move(file)), kind_(std::move(kind)) {}
  absl::Status check_lines();

  std::shared_ptr<const MappedFile> file_;
  std::string kind_;
  std::string_view text_;  // without a byte order mark
  bool latin1_ = false;
};

/// The pieces of `text` between occurrences of `separator`; one more than there are of them. Into `fields`, which keeps
/// its memory.
void split_fields(std::string_view text, std::string_view separator, std::vector<std::string_view>& fields);

/// All of `text` as a number, written as C++ writes it; false if it is not one or does not fit.
bool parse_number(std::string_view text, int64_t& number);
/// Finite.
bool parse_number(std::string_view text, double& number);

}  // namespace trainkit::rec
