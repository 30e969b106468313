#pragma once
/// Tokens that are made once and kept in a file.

#include <absl/status/statusor.h>

#include <functional>
#include <string>

#include "trainkit/text/documents.h"
#include "trainkit/text/tokenizer.h"

namespace trainkit::detail {

/// Returns the origin of the tokens of a text of `bytes` bytes. Uses its digests only.
TokenFileOrigin origin_of(const Documents& text, int64_t bytes, const Tokenizer& tokenizer);

/// Same as trainkit::cached_tokens. Sets `made` to whether it has made the tokens.
absl::StatusOr<TokenFile> cached_tokens(const std::string& path, const Documents& text, const Tokenizer& tokenizer,
                                        const TokenizeProgress& progress, bool& made);

/// Returns the file at `path` if it is whole and has this origin. Otherwise writes it from `produce`, as
/// write_token_file() does.
absl::StatusOr<TokenFile> cached_token_file(const std::string& path, const TokenFileOrigin& origin,
                                            const std::function<absl::Status(const TokenSink&)>& produce);

}  // namespace trainkit::detail
