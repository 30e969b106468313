#pragma once
/// The training and validation texts of a run, as tokens.

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trainkit/data/token_windows.h"
#include "trainkit/report/summary.h"
#include "trainkit/text/documents.h"
#include "trainkit/text/tokenizer.h"

namespace trainkit::transformer {

/// A text to train on.
struct TextInput {
  /// See open_documents.
  std::string path = {};
  /// Share of the rows relative to those of the other inputs; 0: by size.
  double weight = 0;
};

/// Parses a value of --input: "book.txt", or "book.txt:0.7" with a weight. A path that exists as it is written has no
/// weight, so a name may end in ":0.7". nullopt for a weight that is not positive and finite.
std::optional<TextInput> parse_input(const std::string& text);

struct CorpusOptions {
  /// One or more; either all have a weight or none. Empty: Debian's licence texts in
  /// /usr/share/common-licenses or, if there are none, generated text (demo_text.h).
  std::vector<TextInput> inputs = {};
  /// Text for validation. Empty: the end of each input.
  std::string validation_input = {};
  DocumentOptions text = {};
  /// "char" or "gpt2"; gpt2 requires `vocab` and `merges`.
  std::string tokenizer = "char";
  std::string vocab = {};
  std::string merges = {};
  /// Parse "<|endoftext|>" in a text as the token that ends a document.
  bool allow_special_tokens = false;
  /// Tokenizer file of an earlier run. It replaces the above, so that resuming and sampling agree with training.
  std::string saved_tokenizer = {};
  /// Existing folder for the token files.
  std::string cache_dir = {};
  /// Existing folder for prepared texts, which are not read again once they are tokenized. Empty: cache_dir.
  std::string prepared_dir = {};
  /// Called with the texts' digest before the tokens are written; its error is returned.
  std::function<absl::Status(const std::string& digest)> check_digest = nullptr;
  /// Share of each input, at its end, for validation.
  double validation_fraction = 0.1;
  /// Window length. The training part of an input must have at least block_size + 1 tokens.
  int64_t block_size = 128;
};

/// A tokenized text.
struct TokenizedText {
  /// See Documents::name.
  std::string source = {};
  int64_t bytes = 0;
  int64_t crlf = 0;
  int64_t empty_documents = 0;
  /// See Documents::left_out.
  std::vector<std::string> left_out = {};
  TokenFile tokens;
  /// Tokens [0, train_tokens) are for training, the rest for validation.
  int64_t train_tokens = 0;
  /// See TextInput::weight.
  double weight = 0;
};

struct Corpus {
  /// In the order of CorpusOptions::inputs.
  std::vector<TokenizedText> texts = {};
  /// The text of validation_input.
  std::optional<TokenizedText> validation = {};
  /// The files of all texts and their tokens.
  std::vector<CachedText> files = {};
  /// Identifies all texts, as they are tokenized, and their weights.
  std::string digest = {};
  std::shared_ptr<const Tokenizer> tokenizer = nullptr;
  /// Mean number of characters (code points) per token of the validation text; 1 with the char tokenizer. The end of a
  /// document is no character.
  double characters_per_token = 1;

  /// Texts with the validation parts: that of validation_input, or the inputs.
  std::span<const TokenizedText> validation_texts() const {
    return validation ? std::span(&*validation, 1) : std::span(texts);
  }
  /// Returns the facts "text", "text 2", ... and "validation" of a run.
  RunFacts describe(const DocumentOptions& options) const;
};

/// Name of the tokenizer's file in a run's folder.
inline constexpr char kTokenizerFile[] = "tokenizer.json";

/// Makes a data set of each text: of its training part, or with `whole` of its validation part.
std::vector<std::shared_ptr<const TokenWindows>> windows_of(std::span<const TokenizedText> texts,
                                                            TokenWindowsOptions options);

/// Describes what reading a text has found, for the end of a line: "; 12 CRLF line ends (...)". Empty: nothing.
std::string describe_findings(const TokenizedText& text, const DocumentOptions& options);

/// Reports progress on stderr in steps of 10 %, for texts above 16 MiB.
TokenizeProgress tokenize_progress();

/// Reads, checks and tokenizes the texts without a split: train_tokens is 0 and characters_per_token 1. Errors: those
/// of prepare_corpus; data.empty for a text with fewer than `least_tokens` tokens.
absl::StatusOr<Corpus> tokenize_corpus(const CorpusOptions& options, int64_t least_tokens,
                                       const TokenizeProgress& progress = {});

/// Reads, checks and tokenizes the texts, or reuses the cached tokens of the same text. Errors (exit code 4): those of
/// open_documents, Tokenizer and write_token_file; data.empty if a training or validation part is too short.
absl::StatusOr<Corpus> prepare_corpus(const CorpusOptions& options, const TokenizeProgress& progress = {});

/// Checks that a training text has documents. data.documents (exit code 4).
absl::Status check_documents(const Corpus& corpus);

}  // namespace trainkit::transformer
