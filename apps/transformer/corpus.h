#pragma once
/// The training text of a run, as tokens.

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "trainkit/io/tokenizer.h"

namespace trainkit::transformer {

struct CorpusOptions {
  /// A text file, or a folder whose files (no links, no hidden files) are joined in the order of their names. Empty:
  /// Debian's licence texts in /usr/share/common-licenses or, if there are none, generated text (demo_text.h).
  std::string input = {};
  /// "char" or "gpt2"; gpt2 requires `vocab` and `merges`.
  std::string tokenizer = "char";
  std::string vocab = {};
  std::string merges = {};
  /// Tokenizer file of an earlier run. It replaces the above, so that resuming and sampling agree with training.
  std::string saved_tokenizer = {};
  /// Existing folder for the token file.
  std::string cache_dir = {};
  /// Existing folder for the joined text of a folder. Empty: cache_dir.
  std::string joined_dir = {};
  /// Called with the text's digest before the tokens are written; its error is returned.
  std::function<absl::Status(const std::string& digest)> check_digest = nullptr;
  /// Share of the text, at its end, for validation.
  double validation_fraction = 0.1;
  /// Window length. The training part must have at least block_size + 1 tokens.
  int64_t block_size = 128;
};

struct Corpus {
  /// Source of the text for the run's header: a path, or "generated text".
  std::string source = {};
  /// File of the text, for errors.
  std::string path = {};
  int64_t bytes = 0;
  /// Digest::of(text).
  std::string digest = {};
  std::shared_ptr<const Tokenizer> tokenizer = nullptr;
  TokenFile tokens;
  /// Tokens [0, train_tokens) are for training, the rest for validation.
  int64_t train_tokens = 0;
  /// Mean number of characters (code points) per token of the validation text; 1 with the char tokenizer.
  double characters_per_token = 1;
};

/// Reads, checks and tokenizes a text as one part: train_tokens is 0 and characters_per_token 1. Errors: those of
/// prepare_corpus; data.empty for a text with fewer than `least_tokens` tokens.
absl::StatusOr<Corpus> tokenize_corpus(const CorpusOptions& options, int64_t least_tokens,
                                       const TokenizeProgress& progress = {});

/// Reads, checks and tokenizes the text, or reuses the cached tokens of the same text. The text must be UTF-8 without
/// NUL; a byte order mark at the start of a file is skipped. Errors (exit code 4): those of MappedFile::open, Tokenizer
/// and write_token_file; data.encoding; data.empty if the training or validation part is too short.
absl::StatusOr<Corpus> prepare_corpus(const CorpusOptions& options, const TokenizeProgress& progress = {});

/// Adds the file to an error about a text, before the position in it. Other errors stay.
absl::Status add_file_to_error(const absl::Status& status, const std::string& path);

/// Checks that `text` is UTF-8 without NUL and contains a visible character.
absl::Status check_text(std::string_view text);

}  // namespace trainkit::transformer
