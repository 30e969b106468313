#pragma once
/// Text to token ids and back.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trainkit {

using TokenId = uint32_t;

/// Takes tokens as they are made; an error ends the encoding and is returned by it.
using TokenSink = std::function<absl::Status(std::span<const TokenId>)>;

/// Called now and then with the bytes of text done so far and in all. False ends the work with kCancelled.
using TokenizeProgress = std::function<bool(int64_t done_bytes, int64_t total_bytes)>;

/// A fixed vocabulary of byte strings. Immutable: every method may be called from any thread.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// "char" or "gpt2".
  virtual std::string name() const = 0;

  /// Ids are 0 .. vocab_size() - 1.
  virtual int64_t vocab_size() const = 0;

  /// Hands the tokens of `text`, which must be UTF-8, to `sink`, some thousands at a time: the text may be larger than
  /// memory (a MappedFile). The ids do not depend on how they are handed out. Errors (exit code 4):
  ///   data.encoding  the text is not UTF-8; `where` has the offset
  ///   data.tokens    a character is not in the vocabulary (char tokenizer)
  virtual absl::Status encode(std::string_view text, const TokenSink& sink,
                              const TokenizeProgress& progress = {}) const = 0;

  /// The same, gathered.
  absl::StatusOr<std::vector<TokenId>> encode(std::string_view text) const;

  /// The bytes of one token. Throws c10::IndexError if `id` is not in the vocabulary.
  virtual std::string_view token_bytes(TokenId id) const = 0;

  /// The bytes of `ids`, one after another. Part of a character of several tokens decodes to part of its bytes: use
  /// replace_invalid_utf8 to print it. Error data.tokens if an id is not in the vocabulary.
  absl::StatusOr<std::string> decode(std::span<const TokenId> ids) const;

  /// 32 hexadecimal digits (Digest of to_json()): equal for tokenizers that give the same ids for every text, and in
  /// practice only for those.
  std::string digest() const;

  /// All of the tokenizer as JSON: what save_tokenizer writes and load_tokenizer reads.
  virtual std::string to_json() const = 0;
};

/// Writes `tokenizer` to `path` atomically; errors are those of write_file_atomically (exit code 6). A run keeps its
/// tokenizer beside its weights, so that resuming and sampling use the ids that it was trained with.
absl::Status save_tokenizer(const Tokenizer& tokenizer, const std::string& path);

/// A tokenizer that save_tokenizer wrote. Errors: those of MappedFile::open, data.vocabulary (the file is not one).
absl::StatusOr<std::unique_ptr<Tokenizer>> load_tokenizer(const std::string& path);

/// `text` with each byte that is not part of UTF-8 replaced by U+FFFD.
std::string replace_invalid_utf8(std::string_view text);

/// One token per character (Unicode code point), in the order of the code points.
/// Source: nanoGPT, data/shakespeare_char/prepare.py.
class CharTokenizer final : public Tokenizer {
 public:
  /// The characters of `text`. Errors: data.encoding if it is not UTF-8, data.empty if it has no character.
  static absl::StatusOr<std::unique_ptr<CharTokenizer>> from_text(std::string_view text);
  /// Exactly these code points, ascending; at least one. Error data.vocabulary.
  static absl::StatusOr<std::unique_ptr<CharTokenizer>> from_characters(std::vector<uint32_t> characters);

  std::string name() const override { return "char"; }
  int64_t vocab_size() const override { return static_cast<int64_t>(characters_.size()); }
  using Tokenizer::encode;
  absl::Status encode(std::string_view text, const TokenSink& sink,
                      const TokenizeProgress& progress = {}) const override;
  std::string_view token_bytes(TokenId id) const override;
  std::string to_json() const override;

 private:
  explicit CharTokenizer(std::vector<uint32_t> characters);

  std::vector<uint32_t> characters_;
  std::vector<std::string> bytes_;
  std::vector<TokenId> low_ids_;  // of code points below 2^16; kUnknown where there is none
};

struct Gpt2TokenizerOptions {
  /// Read "<|endoftext|>" in a text as the one token that ends a document. Otherwise it is text like any other.
  bool special_tokens = true;
};

/// GPT-2's byte-level byte-pair encoding. Gives the ids of tiktoken's "gpt2" encoding built from the same files.
/// Source: https://github.com/openai/gpt-2/blob/master/src/encoder.py; the classes of characters that the splitting
/// pattern uses are those of the Unicode version of tiktoken 0.14 (16.0).
class Gpt2Tokenizer final : public Tokenizer {
 public:
  static constexpr std::string_view kEndOfText = "<|endoftext|>";

  /// Reads a vocabulary ("encoder.json", "vocab.json": {"token": id, ...}, ids 0 .. n - 1 each once) and its merges
  /// ("vocab.bpe", "merges.txt": two tokens a line, best first, after an optional line "#version: 0.2").
  /// Errors: those of MappedFile::open; data.vocabulary and data.merges name the file, the line and the rule it breaks.
  static absl::StatusOr<std::unique_ptr<Gpt2Tokenizer>> open(const std::string& vocab_path,
                                                             const std::string& merges_path,
                                                             Gpt2TokenizerOptions options = {});
  /// The same from text; the paths are only for messages.
  static absl::StatusOr<std::unique_ptr<Gpt2Tokenizer>> parse(std::string_view vocab_json, std::string_view merges,
                                                              const std::string& vocab_path,
                                                              const std::string& merges_path,
                                                              Gpt2TokenizerOptions options = {});
  ~Gpt2Tokenizer() override;

  std::string name() const override { return "gpt2"; }
  int64_t vocab_size() const override;
  using Tokenizer::encode;
  absl::Status encode(std::string_view text, const TokenSink& sink,
                      const TokenizeProgress& progress = {}) const override;
  std::string_view token_bytes(TokenId id) const override;
  std::string to_json() const override;
  TokenId end_of_text() const;

 private:
  class Impl;
  explicit Gpt2Tokenizer(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace trainkit
