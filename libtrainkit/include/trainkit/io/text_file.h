#pragma once
/// Reads text files line by line, packed with gzip or not, with errors that name file and line.

#include <absl/functional/function_ref.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trainkit/io/mapped_file.h"

namespace trainkit {

namespace detail {
class Inflater;
}

/// What a text may contain.
struct TextOptions {
  /// Errors of the text are data.<kind>.
  std::string kind = "text";
  /// The text may be Latin-1 (ISO 8859-1) instead of UTF-8. The whole file has one of the two.
  bool latin1 = false;
  /// The text may contain control characters besides tabs, and carriage returns inside a line.
  bool control_characters = false;
  /// The last line may lack its line end. false: such a file may be truncated, which is an error.
  bool may_end_open = true;
  /// Longest line in bytes. Stops early on a file without line ends.
  int64_t max_line_bytes = int64_t{16} << 20;
};

/// The lines of a text from front to back. It holds one line at a time: a packed file is unpacked in pieces of 256 KiB.
/// Not thread-safe.
class TextLines {
 public:
  TextLines(TextLines&&) noexcept;
  ~TextLines();

  /// Returns the next line with its line end (LF or CRLF), and nullopt after the last one. The text is valid until the
  /// next call. Errors: data.damaged if the file shrank while it was read.
  absl::StatusOr<std::optional<std::string_view>> next();
  /// Number of the line that next() has returned, from 1.
  int64_t number() const { return number_; }

 private:
  friend class TextFile;
  TextLines(std::shared_ptr<const MappedFile> file, const TextOptions& options);
  /// Makes rest_ the next piece of the text; empty at its end.
  absl::Status next_piece();
  absl::StatusOr<std::optional<std::string_view>> last_line();
  /// Skips lines of the present piece that pass every check of TextFile.
  void skip_plain_lines();

  std::shared_ptr<const MappedFile> file_;
  std::string kind_;
  size_t max_line_bytes_;
  std::unique_ptr<detail::Inflater> inflater_;  // nullptr for a plain file
  std::vector<char> unpacked_;                  // the present piece of a packed file
  std::string_view rest_;                       // of the present piece
  std::string line_;                            // a line of several pieces
  bool begun_ = false;
  int64_t number_ = 0;
};

/// A text file. open() checks the whole file; see Note [Checks of a text file] in text_file.cpp. Thread-safe.
class TextFile {
 public:
  /// Opens and checks a file, which may be packed with gzip; lines and their numbers are those of the unpacked text. A
  /// byte order mark is left out.
  ///
  /// Errors, exit code 4: those of MappedFile::open; data.<kind> for a file that is empty, UTF-16 or of another format,
  /// a character that the options refuse, a NUL byte, a line that is too long, a last line without a line end, a mix of
  /// UTF-8 and Latin-1; data.damaged for damaged gzip data.
  static absl::StatusOr<TextFile> open(const std::string& path, const TextOptions& options = {});

  const std::string& path() const { return file_->path(); }
  bool is_latin1() const { return latin1_; }
  bool is_packed() const;

  /// Starts at the first line.
  TextLines lines() const { return {file_, options_}; }
  /// Calls `visit` with every line without its line end. Line numbers start at 1. Stops at the first error and returns
  /// it.
  absl::Status for_each_line(absl::FunctionRef<absl::Status(int64_t line, std::string_view text)> visit) const;

  /// Converts a piece of a line to UTF-8.
  std::string to_utf8(std::string_view text) const;

  /// Makes an error about `line`; 0 means the whole file.
  absl::Status bad(int64_t line, const std::string& field, const std::string& problem, std::string_view got = {},
                   const std::string& expected = "", const std::string& hint = "") const;

 private:
  TextFile(std::shared_ptr<const MappedFile> file, TextOptions options)
      : file_(std::move(file)), options_(std::move(options)) {}
  absl::Status check_lines();

  std::shared_ptr<const MappedFile> file_;
  TextOptions options_;
  bool latin1_ = false;
};

/// Returns `line` without its line end, LF or CRLF.
std::string_view without_line_end(std::string_view line);

/// Returns `text` without blanks and tabs at its ends.
std::string_view trimmed(std::string_view text);

/// Parses all of `text` as a number, as std::from_chars does. Returns false if it is not a number or out of range.
bool parse_number(std::string_view text, int64_t& number);
/// The same for a finite number.
bool parse_number(std::string_view text, double& number);

}  // namespace trainkit
