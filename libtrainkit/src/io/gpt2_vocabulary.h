#pragma once
/// GPT-2's vocabulary and merges, read from files that strangers wrote.

#include <absl/status/statusor.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trainkit/io/tokenizer.h"

namespace trainkit::detail {

struct Gpt2Vocabulary {
  /// The bytes of each token, by id.
  std::vector<std::string> tokens;
  std::array<TokenId, 256> byte_ids;
  /// The tokens that are made of two others, best first.
  std::vector<std::pair<TokenId, TokenId>> merges;
  /// The token each merge makes.
  std::vector<TokenId> merged;
  TokenId end_of_text = 0;
};

/// Reads and checks both texts; see Gpt2Tokenizer::open.
absl::StatusOr<Gpt2Vocabulary> parse_gpt2_vocabulary(std::string_view vocab_json, std::string_view merges,
                                                     const std::string& vocab_path, const std::string& merges_path);

/// The two texts that parse_gpt2_vocabulary reads, in one canonical form.
std::string gpt2_vocab_json(const Gpt2Vocabulary& vocabulary);
std::string gpt2_merges_text(const Gpt2Vocabulary& vocabulary);

}  // namespace trainkit::detail
