#pragma once
/// What is known of users and items, as tokens.

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "gpt2_recommender/interactions.h"
#include "trainkit/io/tokenizer.h"

namespace trainkit::rec {

/// The texts of all users and then of all items, tokenised and padded at the end to the longest.
struct Metadata {
  at::Tensor ids = {};   ///< (U + I, T) int64; 0 where there is padding
  at::Tensor mask = {};  ///< (U + I, T) int64: 1 for a token, 0 for padding; the first is always 1
  int64_t num_users = 0;
  int64_t vocab_size = 0;

  int64_t rows() const { return ids.size(0); }
  int64_t max_tokens() const { return ids.size(1); }
};

/// Tokenises the texts, each cut at `max_tokens`. A user or an item without a text gets one token, `empty_id`.
absl::StatusOr<Metadata> tokenize_metadata(const Interactions& interactions, const Tokenizer& tokenizer,
                                           int64_t max_tokens, TokenId empty_id);

/// GPT-2's tokenizer of a folder (vocab.json and merges.txt, or encoder.json and vocab.bpe), or, if `folder` is empty,
/// one of the characters of the texts. `empty_id` is set to what stands for no text. Errors: those of
/// Gpt2Tokenizer::open, exit code 4.
absl::StatusOr<std::unique_ptr<Tokenizer>> metadata_tokenizer(const Interactions& interactions,
                                                              const std::string& folder, TokenId& empty_id);

}  // namespace trainkit::rec
