#pragma once
/// The record next to a token file: what a start needs to know of a text that it does not read again.

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainkit/text/documents.h"

namespace trainkit::detail {

/// The files of an input of open_documents.
struct TextSource {
  /// See Documents::name.
  std::string name = {};
  std::vector<std::string> paths = {};
  bool is_folder = false;
  /// Other entries of a folder, with the reason.
  std::vector<std::string> left_out = {};
};

/// Finds the files without reading them. Errors: data.unreadable, data.empty for a folder.
absl::StatusOr<TextSource> find_text(const std::string& input);

/// Returns size and time of a file, without a digest; nullopt if it cannot be found. A link counts as the file that it
/// points to.
std::optional<TextPart> stat_part(const std::string& path);

/// A change within this time before a file is read may be followed by another one with the same time: the clock of a
/// file system may count in steps of up to two seconds.
inline constexpr int64_t kSteadyNs = 2'000'000'000;

struct TextRecord {
  /// The options that the text was read with.
  std::string options = {};
  /// Time before the parts were read, in nanoseconds since 1970.
  int64_t read_ns = 0;
  std::vector<TextPart> parts = {};
  /// See Documents.
  int64_t bytes = 0, crlf = 0, empty_documents = 0;
  std::vector<std::string> empty_files = {};
  std::string content_digest = {}, digest = {};
  /// Each character of the text once, ascending; empty if they were not needed.
  std::string characters = {};
  /// Size and time of the token file, and digests of its blocks; see TokenFile::check_blocks.
  TextPart tokens = {};
  std::vector<std::string> blocks = {};
};

/// Returns the record of the file at `path`; nullopt if there is none or it is damaged.
std::optional<TextRecord> read_text_record(const std::string& path);
/// Writes a record. Replaces no file of another kind.
absl::Status write_text_record(const std::string& path, const TextRecord& record);

}  // namespace trainkit::detail
