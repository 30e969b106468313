// Published vocab.json and merges.txt, separated by a NUL.
#include "gpt2_files.h"

namespace trainkit::fuzz::gpt2_vocabulary {

std::vector<std::string> seeds() {
  const auto [vocab, merges] = tiny_gpt2();
  return {vocab + '\0' + merges, vocab + '\0'};
}

int test_one_input(const uint8_t* data, size_t size) {
  const auto [vocab, merges] = split(as_text(data, size), std::string_view("\0", 1));
  const auto tokenizer = Gpt2Tokenizer::parse(vocab, merges, "vocab.json", "merges.txt");
  if (!tokenizer.ok()) return require_named(tokenizer.status(), {"data."}), 0;
  check_tokenizer(**tokenizer, "hello help <|endoftext|> \xc3\xa4\n 12");
  check_tokenizer(**tokenizer, merges);
  return 0;
}

const Registered target("gpt2_vocabulary", &seeds, &test_one_input);

}  // namespace trainkit::fuzz::gpt2_vocabulary
