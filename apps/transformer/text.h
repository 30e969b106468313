#pragma once
/// Reads the texts of --input and --validation_input: plain files, folders and JSON lines.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "trainkit/io/mapped_file.h"
#include "trainkit/text/tokenizer.h"

namespace trainkit::transformer {

struct TextOptions {
  /// Field of each line of a .jsonl file that has the text.
  std::string jsonl_field = "text";
  /// Convert CRLF to LF.
  bool normalize_newlines = false;
  /// Replace "<|endoftext|>" by kDocumentEnd, for the char tokenizer. GPT-2's tokenizer parses it itself.
  bool replace_end_of_text = false;
  /// Each file of a folder is a document.
  bool files_are_documents = false;
  /// Written after each document.
  char document_end = kDocumentEnd;
};

/// A text: a byte order mark at the start of a file is skipped, and documents are joined.
struct Text {
  /// For the run's first lines: a path, a folder with the number of its files, or "generated text".
  std::string name = {};
  /// The file that `content` is a part of: the input, or the prepared text.
  std::shared_ptr<const MappedFile> file = nullptr;
  std::string_view content = {};
  /// Ends of the documents in `content`, ascending, each after its document_end. Empty for a plain text.
  std::vector<int64_t> documents = {};
  /// CRLF line ends in the input.
  int64_t crlf = 0;
  /// Documents without a character, which are skipped.
  int64_t empty_documents = 0;
  /// Entries of a folder that are left out, with the reason: "b (a folder)".
  std::vector<std::string> left_out = {};

  /// Digest of the content; of the ends of its documents too if there are any.
  std::string digest() const;
};

/// Opens a text. `input` is a text file, a .jsonl file (each line an object; its field has one document), or a folder
/// whose files are joined in the order of their names (see list_files; a link is read as the file that it points to).
/// Empty: Debian's licence texts in /usr/share/common-licenses or, if there are none, generated text (demo_text.h). A
/// text that cannot be used as it is on the disk is written to `prepared` first. Blocks. Errors (exit code 4): those of
/// MappedFile::open; data.encoding for a text that is not UTF-8 or contains NUL, data.empty for one without a visible
/// character, each with file and offset; data.jsonl with file and line; exit code 6 if `prepared` cannot be written.
absl::StatusOr<Text> open_text(const std::string& input, const TextOptions& options, const std::string& prepared);

/// Adds the file to an error about a text, before the position in it. Other errors stay.
absl::Status add_file_to_error(const absl::Status& status, const std::string& path);

/// Checks that `text` is UTF-8 without NUL and contains a visible character.
absl::Status check_text(std::string_view text);

}  // namespace trainkit::transformer
