// A tokenizer file of save_tokenizer; an accepted one is written identically, and decoding the tokens gives the text.
#include "trainkit/text/tokenizer.h"

#include "gpt2_files.h"
#include "target.h"

namespace trainkit::fuzz::tokenizer {

std::vector<std::string> seeds() {
  const auto [vocab, merges] = tiny_gpt2();
  return {CharTokenizer::from_text("h\xc3\xa4llo \"w\xf0\x9f\x98\x80rld\"\n")->get()->to_json(),
          Gpt2Tokenizer::parse(vocab, merges, "", "")->get()->to_json()};
}

int test_one_input(const uint8_t* data, size_t size) {
  static MemoryFile memory, copy;
  const auto tokenizer = load_tokenizer(memory.write(as_text(data, size)));
  if (!tokenizer.ok()) return require_named(tokenizer.status(), {"data."}), 0;
  check_tokenizer(**tokenizer, as_text(data, size));
  const auto again = load_tokenizer(copy.write((*tokenizer)->to_json()));
  require(again.ok(), "a value that was read can be written: " + again.status().ToString());
  require((*again)->digest() == (*tokenizer)->digest(), "and is the same tokenizer");
  return 0;
}

const Registered target("tokenizer", &seeds, &test_one_input);

}  // namespace trainkit::fuzz::tokenizer
