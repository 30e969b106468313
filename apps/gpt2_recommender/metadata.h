#pragma once
/// Tokenises the texts of users and items.

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "gpt2_recommender/interactions.h"
#include "trainkit/text/tokenizer.h"

namespace trainkit::rec {

/// Tokens of the texts of all users, followed by those of all items, padded at the end to the longest text.
struct Metadata {
  at::Tensor ids = {};   ///< (U + I, T) int64; 0 for padding
  at::Tensor mask = {};  ///< (U + I, T) int64; 1 for a token, 0 for padding; column 0 is always 1
  int64_t num_users = 0;
  int64_t vocab_size = 0;

  int64_t rows() const { return ids.size(0); }
  int64_t max_tokens() const { return ids.size(1); }
};

/// Tokenises the texts and truncates each to `max_tokens`. A user or an item without a text gets the token `empty_id`.
absl::StatusOr<Metadata> tokenize_metadata(const Interactions& interactions, const Tokenizer& tokenizer,
                                           int64_t max_tokens, TokenId empty_id);

/// Opens GPT-2's tokenizer in `folder` (vocab.json and merges.txt, or encoder.json and vocab.bpe). If `folder` is
/// empty, makes a character tokenizer from the texts. Sets `empty_id` to the token for a missing text: end of text, or
/// a space. Errors: those of Gpt2Tokenizer::open, exit code 4.
absl::StatusOr<std::unique_ptr<Tokenizer>> metadata_tokenizer(const Interactions& interactions,
                                                              const std::string& folder, TokenId& empty_id);

}  // namespace trainkit::rec
