#pragma once
/// Converts text to token ids and back, and stores token ids in a memory-mapped file.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trainkit/io/mapped_file.h"

namespace trainkit {

// ---- Converts text to token ids and back.

using TokenId = uint32_t;

/// Receives tokens during encoding. An error stops the encoding, which returns it.
using TokenSink = std::function<absl::Status(std::span<const TokenId>)>;

/// Reports progress: bytes of text done and in total. Returning false stops the work with kCancelled.
using TokenizeProgress = std::function<bool(int64_t done_bytes, int64_t total_bytes)>;

/// A fixed vocabulary of byte strings. Immutable and thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// "char" or "gpt2".
  virtual std::string name() const = 0;

  /// Ids are 0 .. vocab_size() - 1.
  virtual int64_t vocab_size() const = 0;

  /// Passes the tokens of `text`, which must be UTF-8, to `sink` in batches of some thousands. So the text may be
  /// larger than memory (a MappedFile). The ids do not depend on the batching. Errors (exit code 4):
  ///   data.encoding  the text is not UTF-8; `where` has the offset
  ///   data.tokens    a character is not in the vocabulary (char tokenizer)
  virtual absl::Status encode(std::string_view text, const TokenSink& sink,
                              const TokenizeProgress& progress = {}) const = 0;

  /// Same, but returns all tokens.
  absl::StatusOr<std::vector<TokenId>> encode(std::string_view text) const;

  /// Returns the bytes of one token. Throws c10::IndexError if `id` is not in the vocabulary.
  virtual std::string_view token_bytes(TokenId id) const = 0;

  /// Returns the concatenated bytes of `ids`. A character may span several tokens, so the result may end or begin
  /// within a character: use replace_invalid_utf8 to print it. Error data.tokens if an id is not in the vocabulary.
  absl::StatusOr<std::string> decode(std::span<const TokenId> ids) const;

  /// Returns 32 hexadecimal digits (Digest of to_json()). Equal for tokenizers that give the same ids for every text,
  /// and in practice only for those.
  std::string digest() const;

  /// Returns the whole tokenizer as JSON: the format of save_tokenizer and load_tokenizer.
  virtual std::string to_json() const = 0;
};

/// Writes `tokenizer` to `path` atomically. Errors: those of write_file_atomically (exit code 6). A run stores its
/// tokenizer next to its weights, so that resuming and sampling use the same ids as training.
absl::Status save_tokenizer(const Tokenizer& tokenizer, const std::string& path);

/// Loads a tokenizer written by save_tokenizer. Errors: those of MappedFile::open; data.vocabulary if the file is not a
/// tokenizer.
absl::StatusOr<std::unique_ptr<Tokenizer>> load_tokenizer(const std::string& path);

/// Returns `text` with each byte that is not valid UTF-8 replaced by U+FFFD.
std::string replace_invalid_utf8(std::string_view text);

/// Tokenizes by character (Unicode code point). Ids are in code point order.
///
/// Source: nanoGPT, data/shakespeare_char/prepare.py.
class CharTokenizer final : public Tokenizer {
 public:
  /// Uses the characters of `text`. Errors: data.encoding if it is not UTF-8, data.empty if it has no character.
  static absl::StatusOr<std::unique_ptr<CharTokenizer>> from_text(std::string_view text);
  /// Uses exactly these code points, in ascending order; at least one. Error data.vocabulary.
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
  std::vector<TokenId> low_ids_;  // ids of code points below 2^16; kUnknown if not in the vocabulary
};

struct Gpt2TokenizerOptions {
  /// Encode "<|endoftext|>" as the token that ends a document. If false, it is ordinary text.
  bool special_tokens = true;
};

/// Implements GPT-2's byte-level byte-pair encoding. Gives the ids of tiktoken's "gpt2" encoding for the same files.
/// A text above 64 KiB is encoded by at::get_num_threads() threads; the ids do not depend on their number. Each thread
/// has at most 1 MiB of text with its tokens at a time. Sinks are called in the calling thread.
///
/// Source: https://github.com/openai/gpt-2/blob/master/src/encoder.py. The character classes of the splitting pattern
/// are those of the Unicode version of tiktoken 0.14 (16.0).
class Gpt2Tokenizer final : public Tokenizer {
 public:
  static constexpr std::string_view kEndOfText = "<|endoftext|>";

  /// Reads a vocabulary and its merges. The vocabulary ("encoder.json", "vocab.json") is {"token": id, ...} with each
  /// id from 0 to n - 1 once. The merges ("vocab.bpe", "merges.txt") have two tokens per line, best first, after an
  /// optional line "#version: 0.2".
  ///
  /// Errors: those of MappedFile::open; data.vocabulary and data.merges name the file, the line and the broken rule.
  static absl::StatusOr<std::unique_ptr<Gpt2Tokenizer>> open(const std::string& vocab_path,
                                                             const std::string& merges_path,
                                                             Gpt2TokenizerOptions options = {});
  /// Same, from text. The paths are used only in messages.
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
  /// Encodes joined documents. Each ends at one of `ends`, ascending, with a byte that is not encoded (see Documents);
  /// end_of_text() takes its place. A text after the last end is encoded without one.
  absl::Status encode_documents(std::string_view text, std::span<const int64_t> ends, const TokenSink& sink,
                                const TokenizeProgress& progress = {}) const;
  std::string_view token_bytes(TokenId id) const override;
  std::string to_json() const override;
  TokenId end_of_text() const;

 private:
  class Impl;
  explicit Gpt2Tokenizer(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

/// Byte that ends a document in a text of several: U+0003, "end of text". A char tokenizer may have it as a character.
inline constexpr char kDocumentEnd = '\x03';

/// Returns the token that ends a document: GPT-2's "<|endoftext|>", or the character kDocumentEnd of a char tokenizer.
/// nullopt if the vocabulary lacks it.
std::optional<TokenId> document_end_token(const Tokenizer& tokenizer);

/// Returns the number of characters that begin in each token, one per token of the vocabulary; 0 for the end of a
/// document, which is no text.
std::vector<int64_t> token_characters(const Tokenizer& tokenizer);

// ---- Stores token ids in a memory-mapped file. The format is described in docs/formats/token-file.md.

/// Source text and tokenizer of a token file. The file is stale if they differ.
struct TokenFileOrigin {
  int64_t vocab_size = 0;
  std::string tokenizer_digest = {};  ///< Tokenizer::digest(), 32 hexadecimal digits.
  std::string source_digest = {};     ///< Digest::of(text), 32 hexadecimal digits.
  int64_t source_bytes = 0;
  friend bool operator==(const TokenFileOrigin&, const TokenFileOrigin&) = default;
};

/// Computes the origin for tokens of `text` made by `tokenizer`. Reads the whole text.
TokenFileOrigin origin_of(std::string_view text, const Tokenizer& tokenizer);

/// Memory-mapped tokens. Copies share the mapping.
///
/// Thread-safe.
class TokenFile {
 public:
  /// Maps `path` and checks its header, trailer and size. The tokens are checked when they are read. Errors (exit code
  /// 4): those of MappedFile::open; data.tokens for an invalid file.
  static absl::StatusOr<TokenFile> open(const std::string& path);

  /// Number of tokens. May exceed 2^31.
  int64_t size() const { return size_; }
  int64_t vocab_size() const { return origin_.vocab_size; }
  const TokenFileOrigin& origin() const { return origin_; }
  const std::string& path() const { return file_->path(); }

  /// Returns data.stale (kFailedPrecondition) if the file was made from another text or by another tokenizer. The
  /// message names the difference.
  absl::Status check_origin(const TokenFileOrigin& expected) const;

  /// Copies tokens [begin, begin + out.size()) to `out` as int64, the index type of models. Throws c10::IndexError
  /// unless 0 <= begin and begin + out.size() <= size().
  ///
  /// Throws absl::BadStatusOrAccess with data.tokens if a token is outside the vocabulary (the message has its offset),
  /// or with data.damaged if the file became shorter.
  void read(int64_t begin, std::span<int64_t> out) const;

  /// Prefetches tokens [begin, begin + count) into the CPU cache. Does not block.
  void prefetch(int64_t begin, int64_t count) const;

  /// Reads the whole file and verifies the digest of its contents. Error data.tokens or data.damaged.
  absl::Status verify() const;

  /// Returns the digests of consecutive blocks of 1 MiB of tokens. Reads the whole file.
  std::vector<std::string> block_digests() const;
  /// Makes read() compare each block with its digest when it reads the block for the first time, in any copy of this
  /// object made later; it throws absl::BadStatusOrAccess with data.tokens for a damaged one. Returns false and changes
  /// nothing unless `digests` has one digest per block.
  bool check_blocks(std::vector<std::string> digests);

  /// Returns data.damaged if the file became shorter since it was opened; see MappedFile::check.
  absl::Status check() const { return file_->check(); }

 private:
  TokenFile(std::shared_ptr<const MappedFile> file, TokenFileOrigin origin, int64_t size, int token_bytes);
  absl::Status bad_token(int64_t begin, std::span<const int64_t> tokens) const;
  size_t block_count() const;
  std::string_view block(size_t number) const;

  /// Digests of blocks, and which of them have been compared.
  struct Blocks;
  std::shared_ptr<Blocks> blocks_;
  std::shared_ptr<const MappedFile> file_;
  TokenFileOrigin origin_;
  const std::byte* tokens_;
  int64_t size_;
  int token_bytes_;
};

/// Writes a token file incrementally in constant memory.
///
///   auto tokens = write_token_file(path, origin, [&](const TokenSink& sink) { return tokenizer.encode(text, sink); });
///
/// `produce` passes the tokens to the sink. The file appears at `path` only when it is complete and on disk. Errors:
/// those of `produce` and write_file_atomically; data.tokens for an id outside the vocabulary.
absl::Status write_token_file(const std::string& path, const TokenFileOrigin& origin,
                              const std::function<absl::Status(const TokenSink&)>& produce);

/// Returns the tokens of `text` from the file at `path` if it was made from this text by this tokenizer. Otherwise
/// tokenizes the text and writes the file; a damaged or different file is replaced. Errors: those of Tokenizer::encode
/// and write_token_file; kCancelled if `progress` returned false.
absl::StatusOr<TokenFile> cached_tokens(const std::string& path, std::string_view text, const Tokenizer& tokenizer,
                                        const TokenizeProgress& progress = {});

}  // namespace trainkit
