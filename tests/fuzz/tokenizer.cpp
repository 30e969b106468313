// A tokenizer file of save_tokenizer; an accepted one is written identically, and decoding the tokens gives the text.
#include "trainkit/text/tokenizer.h"

#include "gpt2_files.h"
#include "target.h"

using namespace trainkit;

std::vector<std::string> fuzz::seeds() {
  const auto [vocab, merges] = tiny_gpt2();
  return {CharTokenizer::from_text("h\xc3\xa4llo \"w\xf0\x9f\x98\x80rld\"\n")->get()->to_json(),
          Gpt2Tokenizer::parse(vocab, merges, "", "")->get()->to_json()};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static fuzz::MemoryFile memory, copy;
  const auto tokenizer = load_tokenizer(memory.write(fuzz::as_text(data, size)));
  if (!tokenizer.ok()) return fuzz::require_named(tokenizer.status(), {"data."}), 0;
  fuzz::check_tokenizer(**tokenizer, fuzz::as_text(data, size));
  const auto again = load_tokenizer(copy.write((*tokenizer)->to_json()));
  fuzz::require(again.ok(), "a value that was read can be written: " + again.status().ToString());
  fuzz::require((*again)->digest() == (*tokenizer)->digest(), "and is the same tokenizer");
  return 0;
}
