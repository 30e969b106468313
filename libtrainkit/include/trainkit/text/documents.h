#pragma once
/// Texts to learn from: plain files, folders and JSON lines, with the ends of their documents.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "trainkit/io/mapped_file.h"
#include "trainkit/text/tokenizer.h"

namespace trainkit {

struct DocumentOptions {
  /// Field of each line of a .jsonl file that has the text.
  std::string jsonl_field = "text";
  /// The flag that selects it, for errors.
  std::string jsonl_field_flag = {};
  /// Convert CRLF to LF.
  bool normalize_newlines = false;
  /// Replace "<|endoftext|>" by kDocumentEnd, for a char tokenizer. GPT-2's tokenizer parses it itself.
  bool replace_end_of_text = false;
  /// Each file of a folder is a document.
  bool files_are_documents = false;
  /// Written after each document.
  char document_end = kDocumentEnd;
};

/// A text: a byte order mark at the start of a file is skipped, and documents are joined.
struct Documents {
  /// For the user: a path, or a folder with the number of its files.
  std::string name = {};
  /// The file that `content` is a part of: the input, or the prepared text.
  std::shared_ptr<const MappedFile> file = nullptr;
  std::string_view content = {};
  /// Ends of the documents in `content`, ascending, each after its document_end. Empty for a plain text.
  std::vector<int64_t> ends = {};
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
/// A text that cannot be used as it is on the disk is written to the file `prepared` first. Blocks. Errors (exit code
/// 4): those of MappedFile::open; data.encoding for a text that is not UTF-8 or contains NUL, data.empty for one
/// without a visible character, each with file and offset; data.jsonl with file and line; exit code 6 if `prepared`
/// cannot be written.
absl::StatusOr<Documents> open_documents(const std::string& input, const DocumentOptions& options,
                                         const std::string& prepared);

/// Same as cached_tokens of the content. Each document ends with document_end_token(): a char tokenizer finds it in the
/// text, GPT-2's tokenizer gets it from here, because its end is no text. The errors name the text. data.damaged if its
/// file became shorter.
absl::StatusOr<TokenFile> cached_tokens(const std::string& path, const Documents& text, const Tokenizer& tokenizer,
                                        const TokenizeProgress& progress = {});

/// Checks that `text` is UTF-8 without NUL and contains a visible character: data.encoding or data.empty.
absl::Status check_text(std::string_view text);

/// Adds the file to an error about a text, before the position in it. Other errors stay.
absl::Status add_file_to_error(const absl::Status& status, const std::string& path);

}  // namespace trainkit
