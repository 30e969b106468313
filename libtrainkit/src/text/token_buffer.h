#pragma once
/// Buffers tokens for a TokenSink and reports progress, so that the sink is not called for each token.

#include <cstdint>
#include <vector>

#include "trainkit/text/tokenizer.h"

namespace trainkit::detail {

class TokenBuffer {
 public:
  TokenBuffer(const TokenSink& sink, const TokenizeProgress& progress, size_t total_bytes)
      : sink_(sink), progress_(progress), total_bytes_(total_bytes) {
    tokens_.reserve(kTokens);
  }

  std::vector<TokenId>& tokens() { return tokens_; }

  /// Flushes the buffer if it is full or progress is due. Call it between pieces, with the bytes of text done so far.
  absl::Status advance(size_t done_bytes) {
    if (tokens_.size() < kTokens && done_bytes - reported_bytes_ < kBytes) return absl::OkStatus();
    return flush(done_bytes);
  }

  absl::Status flush(size_t done_bytes) {
    reported_bytes_ = done_bytes;
    if (!tokens_.empty()) {
      if (absl::Status status = sink_(tokens_); !status.ok()) return status;
      tokens_.clear();
    }
    const bool go_on = !progress_ || progress_(static_cast<int64_t>(done_bytes), static_cast<int64_t>(total_bytes_));
    return go_on ? absl::OkStatus() : absl::CancelledError("tokenizing was stopped");
  }

 private:
  static constexpr size_t kTokens = size_t{1} << 14;
  static constexpr size_t kBytes = size_t{1} << 20;

  const TokenSink& sink_;
  const TokenizeProgress& progress_;
  std::vector<TokenId> tokens_;
  size_t total_bytes_;
  size_t reported_bytes_ = 0;
};

/// Returns data.encoding for byte `offset`.
absl::Status invalid_utf8(std::string_view text, size_t offset);

}  // namespace trainkit::detail
