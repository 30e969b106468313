#pragma once
/// Token ids in a memory-mapped file. The format is docs/formats/token-file.md.

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

/// What the tokens were made from and with; a file is stale when it differs.
struct TokenFileOrigin {
  int64_t vocab_size = 0;
  std::string tokenizer_digest = {};  ///< Tokenizer::digest(), 32 hexadecimal digits.
  std::string source_digest = {};     ///< Digest::of(text), 32 hexadecimal digits.
  int64_t source_bytes = 0;
  friend bool operator==(const TokenFileOrigin&, const TokenFileOrigin&) = default;
};

/// The origin that tokens of `text` made by `tokenizer` have. Reads all of the text.
TokenFileOrigin origin_of(std::string_view text, const Tokenizer& tokenizer);

/// Tokens, read through memory. Copies share the map.
///
/// Threads: everything may be called from any thread.
class TokenFile {
 public:
  /// Maps `path` and checks its ends and its size; the tokens themselves are checked when they are read. Errors (exit
  /// code 4): those of MappedFile::open, and data.tokens, which says what is wrong with the file.
  static absl::StatusOr<TokenFile> open(const std::string& path);

  /// Tokens in the file; may exceed 2^31.
  int64_t size() const { return size_; }
  int64_t vocab_size() const { return origin_.vocab_size; }
  const TokenFileOrigin& origin() const { return origin_; }
  const std::string& path() const { return file_->path(); }

  /// data.stale (kFailedPrecondition) naming the difference if the file was made from another text or by another
  /// tokenizer.
  absl::Status check_origin(const TokenFileOrigin& expected) const;

  /// Writes tokens [begin, begin + out.size()) to `out`, as a model wants its indices. 0 <= begin, begin + out.size()
  /// <= size(), else c10::IndexError. Throws absl::BadStatusOrAccess with data.tokens if one is outside the vocabulary
  /// (its offset is named), with data.damaged if the file shrank under the map.
  void read(int64_t begin, std::span<int64_t> out) const;

  /// Asks for the memory of tokens [begin, begin + count) without waiting for it.
  void prefetch(int64_t begin, int64_t count) const;

  /// Reads everything once and compares the digest of the contents. Error data.tokens or data.damaged.
  absl::Status verify() const;

  /// data.damaged if the file is shorter than when it was opened; see MappedFile::check.
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

/// Writes a token file piece by piece, in constant memory.
///
///   auto tokens = write_token_file(path, origin, [&](const TokenSink& sink) { return tokenizer.encode(text, sink); });
///
/// `produce` hands the tokens to the sink. Nothing is at `path` until all of them are on the disk; then the file is
/// whole. Errors: what `produce` returns; data.tokens for an id outside the vocabulary; those of write_file_atomically.
absl::Status write_token_file(const std::string& path, const TokenFileOrigin& origin,
                              const std::function<absl::Status(const TokenSink&)>& produce);

/// The tokens of `text`, from the file at `path` if it was made from this text by this tokenizer, else made now and
/// kept there. A file that is damaged or of other contents is replaced. Errors of Tokenizer::encode and
/// write_token_file; kCancelled if `progress` returned false.
absl::StatusOr<TokenFile> cached_tokens(const std::string& path, std::string_view text, const Tokenizer& tokenizer,
                                        const TokenizeProgress& progress = {});

}  // namespace trainkit
