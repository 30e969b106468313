// Published vocab.json and merges.txt, separated by a NUL.
#include "gpt2_files.h"

using namespace trainkit;

std::vector<std::string> fuzz::seeds() {
  const auto [vocab, merges] = tiny_gpt2();
  return {vocab + '\0' + merges, vocab + '\0'};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto [vocab, merges] = fuzz::split(fuzz::as_text(data, size), std::string_view("\0", 1));
  const auto tokenizer = Gpt2Tokenizer::parse(vocab, merges, "vocab.json", "merges.txt");
  if (!tokenizer.ok()) return fuzz::require_named(tokenizer.status(), {"data."}), 0;
  fuzz::check_tokenizer(**tokenizer, "hello help <|endoftext|> \xc3\xa4\n 12");
  fuzz::check_tokenizer(**tokenizer, merges);
  return 0;
}
