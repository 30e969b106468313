#pragma once
/// Reads GPT-2's vocabulary and merges from untrusted files.

#include <absl/status/statusor.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trainkit/text/tokenizer.h"

namespace trainkit::detail {

struct Gpt2Vocabulary {
  /// Bytes of each token, indexed by id.
  std::vector<std::string> tokens;
  std::array<TokenId, 256> byte_ids;
  /// Pairs of tokens to merge, best first.
  std::vector<std::pair<TokenId, TokenId>> merges;
  /// Result token of each merge.
  std::vector<TokenId> merged;
  TokenId end_of_text = 0;
};

/// Reads and checks both texts; see Gpt2Tokenizer::open.
absl::StatusOr<Gpt2Vocabulary> parse_gpt2_vocabulary(std::string_view vocab_json, std::string_view merges,
                                                     const std::string& vocab_path, const std::string& merges_path);

/// Write the two texts that parse_gpt2_vocabulary reads, in a canonical form.
std::string gpt2_vocab_json(const Gpt2Vocabulary& vocabulary);
std::string gpt2_merges_text(const Gpt2Vocabulary& vocabulary);

}  // namespace trainkit::detail
