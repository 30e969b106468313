#pragma once
/// The text that a run learns, as tokens.

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "trainkit/io/token_file.h"
#include "trainkit/io/tokenizer.h"

namespace trainkit::transformer {

struct CorpusOptions {
  /// A text file, or a folder whose files (not links, not hidden ones) are joined in the order of their names. Empty:
  /// the licence texts of Debian in /usr/share/common-licenses, or where there are none a text of our own
  /// (demo_text.h).
  std::string input = {};
  /// "char" or "gpt2"; the latter needs `vocab` and `merges`.
  std::string tokenizer = "char";
  std::string vocab = {};
  std::string merges = {};
  /// A tokenizer that a run has kept: used instead of the above, so that resuming and sampling agree with training.
  std::string saved_tokenizer = {};
  /// Folder, which exists, for the token file, and for the joined text of a folder.
  std::string cache_dir = {};
  /// Share at the end of the text that is not trained on.
  double validation_fraction = 0.1;
  /// Windows must fit: the training part has at least block_size + 1 tokens.
  int64_t block_size = 128;
};

struct Corpus {
  /// What was read, for the first lines of a run: a path, or "generated text".
  std::string source = {};
  int64_t bytes = 0;
  std::shared_ptr<const Tokenizer> tokenizer = nullptr;
  TokenFile tokens;
  /// Tokens [0, train_tokens) are trained on; the rest is validation.
  int64_t train_tokens = 0;
  /// Characters (code points) of the validation text for each of its tokens: 1 with the char tokenizer.
  double characters_per_token = 1;
};

/// Reads, checks and tokenizes the text, or takes the tokens that an earlier run made of the same text. Text must be
/// UTF-8 without NUL; a byte order mark at the start of a file is left out. Errors (exit code 4): those of
/// MappedFile::open, Tokenizer and write_token_file; data.encoding; data.empty if nothing is left to learn or to
/// validate on.
absl::StatusOr<Corpus> prepare_corpus(const CorpusOptions& options, const TokenizeProgress& progress = {});

/// OK if `text` is UTF-8 without NUL and has something to see in it.
absl::Status check_text(std::string_view text);

}  // namespace trainkit::transformer
