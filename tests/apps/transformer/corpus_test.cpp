#include "transformer/corpus.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "test_util.h"
#include "transformer/demo_text.h"

using namespace trainkit;
using namespace trainkit::transformer;

namespace {

using test::id_of;

std::string write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

std::string text_of(const Corpus& corpus, size_t text = 0) {
  const TokenFile& tokens = corpus.texts.at(text).tokens;
  std::vector<int64_t> ids(static_cast<size_t>(tokens.size()));
  tokens.read(0, ids);
  return corpus.tokenizer->decode(std::vector<TokenId>(ids.begin(), ids.end())).value();
}

std::string lines(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += "line " + std::to_string(i) + "\n";
  return text;
}

}  // namespace

TEST_CASE("A text file is tokenized, and its last tenth becomes the validation set", "[apps][corpus]") {
  const test::TempDir folder;
  CorpusOptions options{
      .inputs = {{write(folder / "text", lines(100))}}, .cache_dir = folder.path().string(), .block_size = 16};
  int tokenized = 0;
  const TokenizeProgress progress = [&](int64_t done, int64_t total) { return tokenized += done == total, true; };
  const Corpus corpus = prepare_corpus(options, progress).value();
  CHECK(text_of(corpus) == lines(100));
  CHECK(corpus.texts[0].tokens.size() == 790);
  CHECK(corpus.texts[0].train_tokens == 711);
  CHECK(corpus.characters_per_token == 1);
  CHECK(corpus.texts[0].bytes == 790);
  CHECK(corpus.texts[0].source == options.inputs[0].path);
  REQUIRE(prepare_corpus(options, progress).ok());
  CHECK(tokenized == 1);  // the second call uses the cache
  write(options.inputs[0].path, lines(101));
  CHECK(text_of(prepare_corpus(options, progress).value()) == lines(101));
  CHECK(tokenized == 2);
}

TEST_CASE("The files of a folder and its linked files are joined in order of their names; what is left out is listed",
          "[apps][corpus]") {
  const test::TempDir folder;
  const test::TempDir cache;
  const test::TempDir elsewhere;
  namespace fs = std::filesystem;
  write(folder / "b", "second text, without a line end");
  write(folder / "a",
        "\xef\xbb\xbf"
        "first text\n");  // with a byte order mark
  write(folder / ".hidden", "x");
  write(folder / "c", "");
  fs::create_directory(folder / "d");
  fs::create_symlink(folder / "a", folder / "e");
  fs::create_symlink(write(elsewhere / "linked", "a linked text"), folder / "aa");
  fs::create_symlink(elsewhere.path(), folder / "f");
  fs::create_symlink(folder / "none", folder / "g");
  fs::create_symlink("h", folder / "h");
  REQUIRE(::mkfifo((folder / "i").c_str(), 0600) == 0);
  const Corpus corpus =
      prepare_corpus({.inputs = {{folder.path().string()}}, .cache_dir = cache.path().string(), .block_size = 4})
          .value();
  CHECK(text_of(corpus) == "first text\na linked text\nsecond text, without a line end\n");
  CHECK(corpus.texts[0].source == folder.path().string() + " (4 files)");
  CHECK(corpus.texts[0].left_out == std::vector<std::string>{"c (empty)", ".hidden (hidden)", "d (a folder)",
                                                             "e (a link to the file of a)", "f (a link to a folder)",
                                                             "g (a link without a target)",
                                                             "h (a link without a target)", "i (no regular file)"});
  CHECK_THAT(describe_findings(corpus.texts[0], {}),
             Catch::Contains("8 entries left out: c (empty), .hidden (hidden), d (a folder) and 5 more"));
}

TEST_CASE("Without input the demonstration text is used", "[apps][corpus]") {
  const test::TempDir cache;
  const Corpus corpus = prepare_corpus({.cache_dir = cache.path().string()}).value();
  CHECK(corpus.texts[0].tokens.size() > 100'000);
  CHECK(corpus.tokenizer->vocab_size() < 200);
}

TEST_CASE("The demonstration text depends on its seed only and has the requested length", "[apps][corpus]") {
  CHECK(demo_text(10'000, 1) == demo_text(10'000, 1));
  CHECK(demo_text(10'000, 1) != demo_text(10'000, 2));
  CHECK(demo_text(10'000).size() >= 10'000);
  CHECK(demo_text(10'000).size() < 11'000);
  CHECK(check_text(demo_text()).ok());
}

TEST_CASE("Text that is unsuitable for training is refused with its file and position", "[apps][corpus]") {
  const test::TempDir folder;
  const std::string good = lines(100);
  const std::vector<std::tuple<std::string, std::string, std::string>> faults = {
      {"", "data.empty", "no visible character"},
      {"  \n\t \xe2\x80\x8b\xef\xbb\xbf", "data.empty", "no visible character"},  // white space and zero width
      {"too short", "data.empty", "training part of the text is too short"},
      {good + std::string("a\0b", 3), "data.encoding", "a NUL byte"},
      {good + "\xff", "data.encoding", "@0x316: not UTF-8"},
      {good + "\xc0\xaf", "data.encoding", "not UTF-8"},
      {good + "\xed\xa0\x80", "data.encoding", "not UTF-8"},
      {"\x1f\x8b\x08" + good, "data.encoding", "not UTF-8"},
      {"\xff\xfel\0i\0n\0e", "data.encoding", "not UTF-8"},
  };
  for (const auto& [text, id, problem] : faults) {
    const std::string path = write(folder / "text", text);
    const absl::Status status =
        prepare_corpus({.inputs = {{path}}, .cache_dir = folder.path().string(), .block_size = 64}).status();
    INFO(error_line(status));
    CHECK(id_of(status) == id);
    CHECK(exit_code(status) == ExitCode::kData);
    CHECK(error_line(status).find(path) != std::string::npos);
    CHECK(error_line(status).find(problem) != std::string::npos);
  }
  const auto id = [&](const std::string& input) {
    return id_of(prepare_corpus({.inputs = {{input}}, .cache_dir = folder.path().string()}).status());
  };
  CHECK(id(folder / "none") == "data.missing");
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK(id(folder / "pipe") == "data.unreadable");
  std::filesystem::create_directory(folder / "empty");
  CHECK(id(folder / "empty") == "data.empty");
  std::filesystem::create_directory(folder / "mixed");
  write(folder / "mixed/a", good);
  write(folder / "mixed/b", "\xff");
  const absl::Status mixed =
      prepare_corpus({.inputs = {{folder / "mixed"}}, .cache_dir = folder.path().string()}).status();
  CHECK(error_line(mixed).find("mixed/b@0x0: not UTF-8") != std::string::npos);
}

TEST_CASE("A validation set without a target is refused", "[apps][corpus]") {
  const test::TempDir folder;
  const CorpusOptions options{
      .inputs = {{write(folder / "text", "abcdefghijk")}}, .cache_dir = folder.path().string(), .block_size = 2};
  const absl::Status status = prepare_corpus(options).status();  // 11 tokens are enough: 9 and 2
  CHECK(status.ok());
  write(options.inputs[0].path, "abcdefghi");
  CHECK(error_line(prepare_corpus(options).status()).find("validation part of the text is too short") !=
        std::string::npos);
}

TEST_CASE("The tokenizer of a run is reused, and a new character is reported", "[apps][corpus]") {
  const test::TempDir folder;
  const std::string saved = folder / "tokenizer.json";
  REQUIRE(save_tokenizer(*CharTokenizer::from_text(lines(100) + "!?").value(), saved).ok());
  CorpusOptions options{.inputs = {{write(folder / "text", lines(100))}},
                        .saved_tokenizer = saved,
                        .cache_dir = folder.path().string(),
                        .block_size = 16};
  CHECK(prepare_corpus(options).value().tokenizer->vocab_size() == 18);
  write(options.inputs[0].path, lines(100) + "~");
  const absl::Status status = prepare_corpus(options).status();
  CHECK(id_of(status) == "data.tokens");
  CHECK(error_line(status).find("text@0x316: character outside the vocabulary") != std::string::npos);
}

TEST_CASE("GPT-2 tokens represent several characters each", "[apps][corpus]") {
  if (test::data_dir().empty()) TRAINKIT_SKIP("needs TRAINKIT_TEST_DATA");
  const test::TempDir folder;
  const std::string bpe = test::data_dir() + "/gpt2_bpe/";
  const Corpus corpus = prepare_corpus({.inputs = {{test::data_dir() + "/text/address.txt"}},
                                        .tokenizer = "gpt2",
                                        .vocab = bpe + "encoder.json",
                                        .merges = bpe + "vocab.bpe",
                                        .cache_dir = folder.path().string(),
                                        .block_size = 16})
                            .value();
  CHECK(corpus.texts[0].tokens.vocab_size() == 50257);
  CHECK(corpus.characters_per_token > 3);
  CHECK(corpus.characters_per_token < 6);
}
