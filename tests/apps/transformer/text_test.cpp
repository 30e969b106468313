#include <fstream>

#include "test_util.h"
#include "trainkit/core/fs.h"
#include "transformer/corpus.h"

using namespace trainkit;
using namespace trainkit::transformer;

namespace {

std::string save(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

std::vector<int64_t> ids_of(const Corpus& corpus) {
  std::vector<int64_t> ids(static_cast<size_t>(corpus.texts.at(0).tokens.size()));
  corpus.texts[0].tokens.read(0, ids);
  return ids;
}

}  // namespace

TEST_CASE("The end of a document is a token but no character", "[apps][text]") {
  const test::TempDir dir;
  std::string lines;
  for (int i = 0; i < 20; ++i) lines += "{\"text\": \"ab\"}\n";
  const Corpus corpus =
      prepare_corpus({.inputs = {{save(dir / "a.jsonl", lines)}}, .cache_dir = dir.path().string(), .block_size = 4})
          .value();
  CHECK(corpus.texts[0].tokens.size() == 60);
  CHECK(corpus.characters_per_token == Approx(4.0 / 6));
}

TEST_CASE("<|endoftext|> in a text is plain text, or ends a document on request", "[apps][text]") {
  const test::TempDir dir;
  const std::string line = "some words\n";
  std::string text;
  for (int i = 0; i < 20; ++i) text += line + "<|endoftext|>";
  const std::string file = save(dir / "a.txt", text);
  CorpusOptions options{.inputs = {{file}}, .cache_dir = dir.path().string(), .block_size = 4};
  const Corpus plain = prepare_corpus(options).value();
  CHECK(plain.texts[0].tokens.size() == static_cast<int64_t>(text.size()));
  CHECK_FALSE(document_end_token(*plain.tokenizer));
  options.allow_special_tokens = true;
  const Corpus parsed = prepare_corpus(options).value();
  CHECK(parsed.texts[0].tokens.size() == 20 * 12);
  const auto ids = ids_of(parsed);
  CHECK(std::count(ids.begin(), ids.end(), document_end_token(*parsed.tokenizer)) == 20);
  CHECK(plain.digest != parsed.digest);
}

TEST_CASE("GPT-2's tokenizer parses <|endoftext|> on request only, and ends each document with it", "[apps][text]") {
  if (test::data_dir().empty()) TRAINKIT_SKIP("needs TRAINKIT_TEST_DATA");
  const test::TempDir dir;
  const std::string bpe = test::data_dir() + "/gpt2_bpe/";
  CorpusOptions options{.inputs = {{save(dir / "a.txt", "Hello<|endoftext|>world, once more.")}},
                        .tokenizer = "gpt2",
                        .vocab = bpe + "encoder.json",
                        .merges = bpe + "vocab.bpe",
                        .cache_dir = dir.path().string(),
                        .block_size = 2};
  constexpr int64_t kEnd = 50256;
  const auto count = [&] {
    const auto ids = ids_of(tokenize_corpus(options, 2).value());
    return std::count(ids.begin(), ids.end(), kEnd);
  };
  CHECK(count() == 0);
  options.allow_special_tokens = true;
  CHECK(count() == 1);
  options.inputs[0].path = save(dir / "a.jsonl", "{\"text\": \"Hello\"}\n{\"text\": \"Hello<|endoftext|>\"}\n");
  CHECK(ids_of(tokenize_corpus(options, 2).value()) == std::vector<int64_t>{15496, kEnd, 15496, kEnd, kEnd});
  options.allow_special_tokens = false;
  const auto ids = ids_of(tokenize_corpus(options, 2).value());
  CHECK(std::vector<int64_t>(ids.begin(), ids.begin() + 3) == std::vector<int64_t>{15496, kEnd, 15496});
  CHECK(std::count(ids.begin(), ids.end(), kEnd) == 2);
  CHECK(ids.back() == kEnd);
}

TEST_CASE("A validation text replaces the end of the input, and its characters are in the vocabulary", "[apps][text]") {
  const test::TempDir dir;
  std::string text;
  for (int i = 0; i < 50; ++i) text += "training ";
  CorpusOptions options{.inputs = {{save(dir / "a.txt", text)}}, .cache_dir = dir.path().string(), .block_size = 4};
  const Corpus split = prepare_corpus(options).value();
  CHECK(split.texts[0].train_tokens == 405);
  options.validation_input = save(dir / "b.txt", "XYZ");
  const Corpus whole = prepare_corpus(options).value();
  CHECK(whole.texts[0].train_tokens == 450);
  REQUIRE(whole.validation);
  CHECK(whole.validation->tokens.size() == 3);
  CHECK(whole.validation->train_tokens == 0);
  CHECK(whole.tokenizer->vocab_size() == split.tokenizer->vocab_size() + 3);
  CHECK(whole.digest != split.digest);
  save(dir / "b.txt", "XYY");
  CHECK(prepare_corpus(options).value().digest != whole.digest);
  save(dir / "b.txt", "X");
  const absl::Status status = prepare_corpus(options).status();
  CHECK(error_line(status).find("b.txt: the validation part of the text is too short") != std::string::npos);
}

TEST_CASE("Several inputs have one vocabulary, and their order and weights are part of the digest", "[apps][text]") {
  const test::TempDir dir;
  const std::string a = save(dir / "a.txt", std::string(60, 'a')), b = save(dir / "b.txt", std::string(40, 'b'));
  const auto corpus = [&](std::vector<TextInput> inputs) {
    return prepare_corpus({.inputs = std::move(inputs), .cache_dir = dir.path().string(), .block_size = 4}).value();
  };
  const Corpus both = corpus({{a}, {b}});
  CHECK(both.tokenizer->vocab_size() == 2);
  REQUIRE(both.texts.size() == 2);
  CHECK(both.texts[1].train_tokens == 36);
  CHECK(both.digest == corpus({{a}, {b}}).digest);
  CHECK(both.digest != corpus({{b}, {a}}).digest);
  CHECK(both.digest != corpus({{a, 0.5}, {b, 0.5}}).digest);
  CHECK(corpus({{a, 0.5}, {b, 0.5}}).digest != corpus({{a, 0.6}, {b, 0.4}}).digest);
}

TEST_CASE("A trailing number after a colon is the weight of an input", "[apps][text]") {
  const test::TempDir dir;
  const auto parsed = [](const std::string& text) {
    const auto input = parse_input(text);
    return input ? std::pair(input->path, input->weight) : std::pair(std::string("invalid"), -1.0);
  };
  using Input = std::pair<std::string, double>;
  CHECK(parsed("a.txt") == Input("a.txt", 0));
  CHECK(parsed("a.txt:0.7") == Input("a.txt", 0.7));
  CHECK(parsed("s3:bucket/a.txt") == Input("s3:bucket/a.txt", 0));
  CHECK(parsed("s3:bucket/a.txt:2") == Input("s3:bucket/a.txt", 2));
  CHECK(parsed("a:b:1e-3") == Input("a:b", 1e-3));
  CHECK(parsed("a:") == Input("a:", 0));
  CHECK(parsed("a:nan") == Input("a:nan", 0));
  CHECK(parsed(":5") == Input(":5", 0));
  for (const char* bad : {"a:0", "a:-1", "a:1e999", "a:1-2"}) CHECK(parsed(bad).first == "invalid");
  const std::string named = save(dir / "take:2", "text");
  CHECK(parsed(named) == Input(named, 0));
  CHECK(parsed(named + ":3") == Input(named, 3));
}
