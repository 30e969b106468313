#pragma once
/// A text and a vocabulary that are the same on every machine.

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "text/gpt2_vocabulary.h"
#include "trainkit/text/tokenizer.h"

namespace trainkit::bench {

/// Returns `size` MiB of words of three to nine letters. Few words are frequent, as in a language.
inline std::string made_up_text(int64_t size) {
  std::mt19937_64 random(1);
  std::vector<std::string> words(100'000);
  for (std::string& word : words) {
    for (uint64_t i = 3 + random() % 7; i > 0; --i) word += static_cast<char>('a' + random() % 26);
  }
  std::string text;
  for (const auto bytes = static_cast<size_t>(size) << 20; text.size() < bytes;) {
    const uint64_t number = random();
    text += words[number % (1 + (number >> 32) % words.size())];
    text += (number >> 16) % 12 == 0 ? ".\n" : " ";
  }
  return text;
}

/// A tokenizer whose merges are all pairs of letters, and of a space and a letter.
inline std::unique_ptr<Gpt2Tokenizer> pairs_of_letters() {
  detail::Gpt2Vocabulary pairs;
  for (int byte = 0; byte < 256; ++byte) {
    pairs.tokens.push_back(std::string(1, static_cast<char>(byte)));
    pairs.byte_ids[static_cast<size_t>(byte)] = static_cast<TokenId>(byte);
  }
  const std::string letters = " abcdefghijklmnopqrstuvwxyz";
  for (const char left : letters) {
    for (const char right : letters.substr(1)) {
      pairs.merges.emplace_back(static_cast<unsigned char>(left), static_cast<unsigned char>(right));
      pairs.merged.push_back(static_cast<TokenId>(pairs.tokens.size()));
      pairs.tokens.push_back(std::string{left, right});
    }
  }
  pairs.end_of_text = static_cast<TokenId>(pairs.tokens.size());
  pairs.tokens.emplace_back(Gpt2Tokenizer::kEndOfText);
  return Gpt2Tokenizer::parse(detail::gpt2_vocab_json(pairs), detail::gpt2_merges_text(pairs), "vocab", "merges")
      .value();
}

}  // namespace trainkit::bench
