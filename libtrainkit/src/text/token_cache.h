#pragma once
/// Tokens that are made once and kept in a file.

#include <absl/status/statusor.h>

#include <functional>
#include <string>

#include "trainkit/text/tokenizer.h"

namespace trainkit::detail {

/// Returns the file at `path` if it is whole and has this origin. Otherwise writes it from `produce`, as
/// write_token_file() does.
absl::StatusOr<TokenFile> cached_token_file(const std::string& path, const TokenFileOrigin& origin,
                                            const std::function<absl::Status(const TokenSink&)>& produce);

}  // namespace trainkit::detail
