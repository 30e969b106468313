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

/// A file of a text, as it was when it was read.
struct TextPart {
  /// Name in its folder.
  std::string name = {};
  int64_t bytes = 0;
  /// Time of the last change of the file (ctime, which no program can set), in nanoseconds since 1970.
  int64_t changed_ns = 0;
  /// Digest of the whole file.
  std::string digest = {};
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
  /// The files that were read, in their order in the text.
  std::vector<TextPart> parts = {};
  /// Digest of the content.
  std::string content_digest = {};
  /// Digest of the content; of the ends of its documents too if there are any.
  std::string digest = {};
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

/// A text whose tokens are kept in a file. A later start reads neither the text nor the tokens if the files of both are
/// unchanged: it compares their sizes and the times of their last change with a record next to the token file
/// (docs/formats/token-file.md).
class CachedText {
 public:
  /// Finds the text `input` whose tokens are kept in the file `tokens`. Reads it only if the record is missing, belongs
  /// to other options, or a file has changed; a file that has another time but the same digest has not. A file that
  /// had changed within two seconds before it was read is compared by its digest too, because a later change may have
  /// the same time. Blocks. Parameters and errors: those of open_documents.
  static absl::StatusOr<CachedText> open(const std::string& input, const DocumentOptions& options,
                                         const std::string& prepared, const std::string& tokens);
  CachedText(CachedText&&) noexcept;
  CachedText& operator=(CachedText&&) noexcept;
  ~CachedText();

  /// The text without `file`, `content` and `ends`.
  const Documents& facts() const;
  /// Size of the text in bytes.
  int64_t size_bytes() const;
  /// Returns each character of the text once, ascending. Reads the text if the record has none. Errors: those of
  /// open_documents; data.damaged if the text has changed since open().
  absl::StatusOr<std::string> characters();
  /// Returns the tokens: those of the file if `tokenizer` made them of this text, otherwise new ones, with a new
  /// record. The tokens of a file whose size or time has changed are verified now, those of others when they are read;
  /// see TokenFile::check_blocks. Errors: those of cached_tokens; data.damaged if the text has changed since open().
  absl::StatusOr<TokenFile> tokens(const Tokenizer& tokenizer, const TokenizeProgress& progress = {});
  /// Writes the record if a file has another time than it had there. Call it after tokens(), when the start has
  /// succeeded: one that is refused then changes no file. A record that cannot be written only costs the next start
  /// time.
  void update_record() const;

 private:
  class Impl;
  explicit CachedText(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Checks that `text` is UTF-8 without NUL and contains a visible character: data.encoding or data.empty.
absl::Status check_text(std::string_view text);

/// Adds the file to an error about a text, before the position in it. Other errors stay.
absl::Status add_file_to_error(const absl::Status& status, const std::string& path);

}  // namespace trainkit
