#include "gpt2_recommender/metadata.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "trainkit/core/status.h"

namespace trainkit::rec {
namespace {

/// Returns the texts of all users, followed by those of all items.
std::vector<std::string_view> texts_of(const Interactions& interactions) {
  std::vector<std::string_view> texts;
  for (const auto* entities : {&interactions.users, &interactions.items}) {
    for (const Entity& entity : *entities) texts.emplace_back(entity.text);
  }
  return texts;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> metadata_tokenizer(const Interactions& interactions,
                                                              const std::string& folder, TokenId& empty_id) {
  if (!folder.empty()) {
    const bool hugging_face = std::filesystem::exists(folder + "/vocab.json");
    TRAINKIT_ASSIGN_OR_RETURN(auto tokenizer,
                              Gpt2Tokenizer::open(folder + (hugging_face ? "/vocab.json" : "/encoder.json"),
                                                  folder + (hugging_face ? "/merges.txt" : "/vocab.bpe")));
    empty_id = tokenizer->end_of_text();
    return tokenizer;
  }
  std::string all = " ";
  for (const std::string_view text : texts_of(interactions)) all += text;
  TRAINKIT_ASSIGN_OR_RETURN(auto tokenizer, CharTokenizer::from_text(all));
  TRAINKIT_ASSIGN_OR_RETURN(const auto blank, tokenizer->encode(" "));
  empty_id = blank.front();
  return tokenizer;
}

absl::StatusOr<Metadata> tokenize_metadata(const Interactions& interactions, const Tokenizer& tokenizer,
                                           int64_t max_tokens, TokenId empty_id) {
  std::vector<std::vector<TokenId>> rows;
  size_t longest = 1;
  for (const std::string_view text : texts_of(interactions)) {
    TRAINKIT_ASSIGN_OR_RETURN(auto tokens, tokenizer.encode(text));
    if (tokens.empty()) tokens.push_back(empty_id);
    tokens.resize(std::min<size_t>(tokens.size(), max_tokens));
    longest = std::max(longest, tokens.size());
    rows.push_back(std::move(tokens));
  }
  Metadata metadata{.num_users = interactions.num_users(), .vocab_size = tokenizer.vocab_size()};
  const auto width = static_cast<int64_t>(longest);
  metadata.ids = at::zeros({static_cast<int64_t>(rows.size()), width}, at::kLong);
  metadata.mask = at::zeros_like(metadata.ids);
  auto* ids = metadata.ids.mutable_data_ptr<int64_t>();
  auto* mask = metadata.mask.mutable_data_ptr<int64_t>();
  for (size_t row = 0; row < rows.size(); ++row) {
    std::copy(rows[row].begin(), rows[row].end(), ids + static_cast<int64_t>(row) * width);
    std::fill_n(mask + static_cast<int64_t>(row) * width, rows[row].size(), 1);
  }
  return metadata;
}

}  // namespace trainkit::rec
