#pragma once
/// Stores token ids in a memory-mapped file. The format is described in docs/formats/token-file.md.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "trainkit/io/mapped_file.h"
#include "trainkit/io/tokenizer.h"

namespace trainkit {

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

  /// Returns data.damaged if the file became shorter since it was opened; see MappedFile::check.
  absl::Status check() const { return file_->check(); }

 private:
  TokenFile(std::shared_ptr<const MappedFile> file, TokenFileOrigin origin, int64_t size, int token_bytes);
  absl::Status bad_token(int64_t begin, std::span<const int64_t> tokens) const;

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
