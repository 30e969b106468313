#include "transformer/text.h"

#include <filesystem>
#include <fstream>

#include "test_util.h"
#include "trainkit/core/fs.h"
#include "transformer/corpus.h"

using namespace trainkit;
using namespace trainkit::transformer;

namespace {

using test::id_of;

std::string save(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

Text open(const test::TempDir& dir, const std::string& input, const TextOptions& options = {}) {
  auto text = open_text(input, options, dir / "prepared");
  INFO(text.status().message());
  REQUIRE(text.ok());
  return *std::move(text);
}

std::vector<int64_t> ids_of(const Corpus& corpus) {
  std::vector<int64_t> ids(static_cast<size_t>(corpus.texts.at(0).tokens.size()));
  corpus.texts[0].tokens.read(0, ids);
  return ids;
}

}  // namespace

TEST_CASE("Each line of a .jsonl file is a document: the text of one field, and its end", "[apps][text]") {
  const test::TempDir dir;
  const std::string file = save(dir / "a.jsonl",
                                "\xef\xbb\xbf{\"text\": \"one\\ntwo \\u00e4\", \"id\": 1}\r\n\n"
                                "{\"id\": 2, \"text\": \"\"}\n  \n{\"text\":\"three\",\"body\":\"3\"}");
  const Text text = open(dir, file);
  CHECK(text.content == "one\ntwo \xc3\xa4\x03three\x03");
  CHECK(text.documents == std::vector<int64_t>{11, 17});
  CHECK(text.empty_documents == 1);
  CHECK(text.name == file);
  const std::string body = save(dir / "b.jsonl", "{\"body\": \"b\", \"text\": 1}\n");
  CHECK(open(dir, body, {.jsonl_field = "body"}).content == "b\x03");
  // The same bytes with other documents are another text.
  const std::string joined = save(dir / "c.jsonl", "{\"text\": \"one\\ntwo \\u00e4\\u0003three\"}");
  const std::string digest = text.digest();
  CHECK(open(dir, joined).content == text.content);
  CHECK(open(dir, joined).digest() != digest);
}

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

TEST_CASE("A faulty line of a .jsonl file is an error with its file and line", "[apps][text]") {
  const test::TempDir dir;
  const std::string good = "{\"text\": \"a\"}\n\n";
  const std::vector<std::tuple<std::string, std::string, std::string>> faults = {
      {"{\"txt\": \"a\", \"n\": 1}", ": text: no such field", "--jsonl_field selects one of: txt"},
      {"{\"n\": 1}", ": text: no such field", ""},
      {"{\"text\": 5}", ": text: not a string (got 'number'", ""},
      {"{\"text\": null}", ": text: not a string (got 'null'", ""},
      {"[\"text\"]", ": not a JSON object (got 'array'", ""},
      {"{\"text\": \"a\"", "is not valid JSON", ""},
      {"{\"text\": \"\\ud800\"}", "is not valid JSON", ""},
      {"{\"text\": \"\xff\"}", "is not valid JSON", ""},
      {"{\"text\": \"a\\u0000b\"}", "a NUL character in a text", ""}};
  for (const auto& [line, problem, hint] : faults) {
    const std::string path = save(dir / "bad.jsonl", good + line + "\n" + good);
    const absl::Status status = open_text(path, {}, dir / "prepared").status();
    INFO(error_text(status));
    CHECK(id_of(status) == "data.jsonl");
    CHECK(exit_code(status) == ExitCode::kData);
    CHECK(error_line(status).find(path + ":3") != std::string::npos);
    CHECK(error_line(status).find(problem) != std::string::npos);
    CHECK(error_text(status).find(hint) != std::string::npos);
    CHECK_FALSE(std::filesystem::exists(dir / "prepared"));
  }
  const absl::Status empty = open_text(save(dir / "bad.jsonl", "\n"), {}, dir / "prepared").status();
  CHECK(id_of(empty) == "data.empty");
}

TEST_CASE("CRLF line ends are counted, and converted on request", "[apps][text]") {
  const test::TempDir dir;
  const std::string file = save(dir / "a.txt", "one\r\ntwo\rthree\n\r\nfour\r");
  CHECK(open(dir, file).content == "one\r\ntwo\rthree\n\r\nfour\r");
  CHECK(open(dir, file).crlf == 2);
  CHECK_FALSE(std::filesystem::exists(dir / "prepared"));
  const Text converted = open(dir, file, {.normalize_newlines = true});
  CHECK(converted.content == "one\ntwo\rthree\n\nfour\r");
  CHECK(converted.crlf == 2);
  CHECK(converted.digest() != open(dir, file).digest());
  std::filesystem::create_directory(dir / "folder");
  save(dir / "folder/a.txt", "a\r\n");
  save(dir / "folder/b.jsonl", "{\"text\": \"b\\r\\nc\"}\r\n");
  const Text folder = open(dir, dir / "folder", {.normalize_newlines = true});
  CHECK(folder.content == "a\nb\nc\x03");
  CHECK(folder.crlf == 2);
}

TEST_CASE("Converted line ends of a long text are those of a short one", "[apps][text]") {
  const test::TempDir dir;
  std::string crlf, lf;
  for (int i = 0; i < 300'000; ++i) crlf += std::to_string(i) + "\r\n", lf += std::to_string(i) + "\n";
  const std::string file = save(dir / "a.txt", crlf);
  CHECK(open(dir, file, {.normalize_newlines = true}).content == lf);
  CHECK(open(dir, file, {.normalize_newlines = true, .replace_end_of_text = true}).content == lf);
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
