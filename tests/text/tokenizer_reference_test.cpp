#include <cstring>
#include <fstream>
#include <sstream>

#include "reference_util.h"
#include "test_util.h"
#include "trainkit/io/mapped_file.h"
#include "trainkit/text/tokenizer.h"

using namespace trainkit;

namespace {

std::vector<TokenId> read_ids(const std::string& path) {
  const auto file = MappedFile::open(path).value();
  std::vector<TokenId> ids(file->bytes().size() / sizeof(TokenId));
  if (!ids.empty()) std::memcpy(ids.data(), file->bytes().data(), file->bytes().size());
  return ids;
}

}  // namespace

TEST_CASE("GPT-2 tokens equal tiktoken's on every text", "[io][tokenizer]") {
  if (test::python().empty() || test::data_dir().empty()) TRAINKIT_SKIP("needs TRAINKIT_PYTHON and TRAINKIT_TEST_DATA");
  if (!test::python_has("tiktoken numpy")) TRAINKIT_SKIP("needs tiktoken");
  const test::TempDir folder;
  const std::string bpe = test::data_dir() + "/gpt2_bpe/";
  test::run_reference("tokenizer.py", bpe + "encoder.json " + bpe + "vocab.bpe " + test::data_dir() + "/text " +
                                          folder.path().string());
  int count = 0;
  std::ifstream(folder / "count") >> count;
  REQUIRE(count > 300);

  const auto special = Gpt2Tokenizer::open(bpe + "encoder.json", bpe + "vocab.bpe").value();
  const auto ordinary = Gpt2Tokenizer::open(bpe + "encoder.json", bpe + "vocab.bpe", {.special_tokens = false}).value();
  CHECK(special->vocab_size() == 50257);
  CHECK(special->end_of_text() == 50256);
  for (int i = 0; i < count; ++i) {
    INFO("text " << i);
    const std::string stem = folder / std::to_string(i);
    const auto text = MappedFile::open(stem + ".txt").value();
    const auto tokens = special->encode(text->text()).value();
    CHECK((tokens == read_ids(stem + ".special")));
    CHECK((ordinary->encode(text->text()).value() == read_ids(stem + ".ordinary")));
    CHECK((special->decode(tokens).value() == text->text()));
  }
  // The same merges without their header line give the same tokenizer.
  CHECK(Gpt2Tokenizer::open(bpe + "encoder.json", bpe + "gpt2_merges.txt").value()->digest() == special->digest());
}
