#include "trainkit/text/tokenizer.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <fstream>

#include "core/base/utf8.h"
#include "test_util.h"
#include "trainkit/text/documents.h"

using namespace trainkit;

namespace {

using test::id_of;

std::vector<TokenId> encode(const Tokenizer& tokenizer, std::string_view text) {
  return tokenizer.encode(text).value();
}

/// The character that represents a byte in GPT-2's files.
std::string byte_character(int byte) {
  uint32_t next = 256;
  for (int b = 0; b < 256; ++b) {
    const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    const uint32_t c = printable ? b : next++;
    if (b == byte) {
      std::string text;
      append_utf8(text, c);
      return text;
    }
  }
  return {};
}

std::string escaped(const std::string& word) { return word == "\"" || word == "\\" ? "\\" + word : word; }

/// A vocabulary of the 256 bytes, `more` words from 256 on, and then <|endoftext|>.
std::string vocab(const std::vector<std::string>& more = {"ab", "abc"}, const std::string& end = "<|endoftext|>",
                  const std::string& extra = "") {
  std::string json = "{";
  for (int byte = 0; byte < 256; ++byte) json += fmt::format("\"{}\": {}, ", escaped(byte_character(byte)), byte);
  int id = 256;
  for (const std::string& word : more) json += fmt::format("\"{}\": {}, ", word, id++);
  return json + extra + fmt::format("\"{}\": {}}}", end, id);
}

constexpr char kMerges[] = "#version: 0.2\na b\nab c\n";

absl::Status parse(const std::string& vocab_json, const std::string& merges) {
  return Gpt2Tokenizer::parse(vocab_json, merges, "encoder.json", "vocab.bpe").status();
}

std::unique_ptr<Gpt2Tokenizer> small_gpt2(Gpt2TokenizerOptions options = {}) {
  return Gpt2Tokenizer::parse(vocab(), kMerges, "encoder.json", "vocab.bpe", options).value();
}

}  // namespace

TEST_CASE("Characters get ids in the order of their code points", "[io][tokenizer]") {
  const auto tokenizer = CharTokenizer::from_text("hello, wörld €😀").value();
  CHECK(tokenizer->name() == "char");
  CHECK(tokenizer->vocab_size() == 12);
  CHECK(encode(*tokenizer, " ,de") == std::vector<TokenId>{0, 1, 2, 3});
  CHECK(encode(*tokenizer, "😀€ö") == std::vector<TokenId>{11, 10, 9});
  CHECK(tokenizer->token_bytes(11) == "😀");
  CHECK(tokenizer->decode(encode(*tokenizer, "wörld 😀")).value() == "wörld 😀");
  CHECK(encode(*tokenizer, "").empty());
}

TEST_CASE("A character missing from the training text is reported with its position", "[io][tokenizer]") {
  const auto tokenizer = CharTokenizer::from_text("abc").value();
  const absl::Status status = tokenizer->encode("abcé").status();
  CHECK(id_of(status) == "data.tokens");
  CHECK(error_line(status).find("@0x3") != std::string::npos);
  CHECK(error_line(status).find("U+00E9") != std::string::npos);
  CHECK(id_of(tokenizer->encode("ab😀").status()) == "data.tokens");
  CHECK(id_of(tokenizer->decode(std::vector<TokenId>{0, 3}).status()) == "data.tokens");
  CHECK_THROWS_AS(tokenizer->token_bytes(3), c10::IndexError);
  CHECK(id_of(CharTokenizer::from_text("").status()) == "data.empty");
}

TEST_CASE("Text that is not UTF-8 is refused with the offset of the error", "[io][tokenizer]") {
  const auto gpt2 = small_gpt2();
  const auto chars = CharTokenizer::from_text("ab").value();
  const std::vector<std::pair<std::string, std::string>> faults = {
      {"ab\xff", "@0x2"},              // not a first byte
      {"a\xc3", "@0x1"},               // truncated
      {"ab\xc0\xaf", "@0x2"},          // overlong
      {"ab\xed\xa0\x80", "@0x2"},      // lone surrogate
      {"ab\xf4\x90\x80\x80", "@0x2"},  // above U+10FFFF
      {"\x1f\x8b\x08"
       "ab",
       "@0x1"},  // gzip
      {"\xff\xfe"
       "a",
       "@0x0"},  // UTF-16
  };
  for (const auto& [text, place] : faults) {
    INFO(escape_text(text));
    for (const absl::Status& status :
         {gpt2->encode(text).status(), CharTokenizer::from_text(text).status(),
          text[0] == 'a' ? chars->encode(text).status() : CharTokenizer::from_text(text).status()}) {
      CHECK(id_of(status) == "data.encoding");
      CHECK(exit_code(status) == ExitCode::kData);
      CHECK(error_line(status).find(place + ":") != std::string::npos);
    }
  }
}

TEST_CASE("A saved tokenizer loads as the same one", "[io][tokenizer]") {
  const test::TempDir folder;
  const auto chars = CharTokenizer::from_text("ab\"\\\n\xc3\xa9😀").value();
  const auto gpt2 = small_gpt2();
  const auto plain = small_gpt2({.special_tokens = false});
  CHECK(gpt2->digest() != plain->digest());
  CHECK(gpt2->digest() != chars->digest());
  for (const Tokenizer* tokenizer : {static_cast<Tokenizer*>(chars.get()), static_cast<Tokenizer*>(gpt2.get()),
                                     static_cast<Tokenizer*>(plain.get())}) {
    REQUIRE(save_tokenizer(*tokenizer, folder / "tokenizer.json").ok());
    const auto loaded = load_tokenizer(folder / "tokenizer.json").value();
    CHECK(loaded->name() == tokenizer->name());
    CHECK(loaded->digest() == tokenizer->digest());
    const std::string text = tokenizer == chars.get() ? "a\"\\\n😀" : "abc abab<|endoftext|>\n";
    CHECK(encode(*loaded, text) == encode(*tokenizer, text));
  }
  CHECK(exit_code(save_tokenizer(*chars, folder / "no/such/folder")) == ExitCode::kStorage);
}

TEST_CASE("An invalid tokenizer file is reported by name", "[io][tokenizer]") {
  const test::TempDir folder;
  const std::string path = folder / "tokenizer.json";
  for (const char* text :
       {"", "{", "[]", "{}", R"({"type": "bpe"})", R"({"type": "char"})", R"({"type": "char", "characters": 5})",
        R"({"type": "char", "characters": ""})", R"({"type": "char", "characters": "ba"})",
        R"({"type": "gpt2", "vocab": "{}", "merges": "", "special_tokens": true})", R"({"type": 5})"}) {
    std::ofstream(path) << text;
    INFO(text);
    CHECK(id_of(load_tokenizer(path).status()) == "data.vocabulary");
  }
  CHECK(id_of(load_tokenizer(folder / "none").status()) == "data.missing");
  REQUIRE(save_tokenizer(*CharTokenizer::from_text("ab").value(), path).ok());
  REQUIRE(load_tokenizer(path).ok());
  std::ofstream(path, std::ios::app) << '\0' << "garbage";
  CHECK(id_of(load_tokenizer(path).status()) == "data.vocabulary");
  CHECK(error_line(load_tokenizer(path).status()).find("it holds a NUL byte") != std::string::npos);
}

TEST_CASE("Pairs are merged in order of rank, and pieces never cross the pattern's boundaries", "[io][tokenizer]") {
  const auto tokenizer = small_gpt2();
  CHECK(tokenizer->vocab_size() == 259);
  CHECK(tokenizer->end_of_text() == 258);
  CHECK(encode(*tokenizer, "ab") == std::vector<TokenId>{256});
  CHECK(encode(*tokenizer, "abcabab") == std::vector<TokenId>{257, 256, 256});
  CHECK(encode(*tokenizer, "bca") == std::vector<TokenId>{'b', 'c', 'a'});
  CHECK(encode(*tokenizer, "ab1c") == std::vector<TokenId>{256, '1', 'c'});
  CHECK(tokenizer->decode(encode(*tokenizer, "abc é 😀\n")).value() == "abc é 😀\n");
}

TEST_CASE("<|endoftext|> is one token unless special tokens are disabled", "[io][tokenizer]") {
  const std::string text = "ab<|endoftext|>ab<|endoftext|>";
  CHECK(encode(*small_gpt2(), text) == std::vector<TokenId>{256, 258, 256, 258});
  const auto plain = small_gpt2({.special_tokens = false});
  CHECK(encode(*plain, text).size() == 2 * (1 + Gpt2Tokenizer::kEndOfText.size()));
  CHECK(plain->decode(encode(*plain, text)).value() == text);
}

TEST_CASE("A long run of letters takes n log n time and gives the tokens of short runs", "[io][tokenizer]") {
  const auto tokenizer = small_gpt2();
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += "abcab";
  const auto tokens = encode(*tokenizer, text);
  REQUIRE(tokens.size() == 200'000);
  for (size_t i = 0; i < tokens.size(); i += 2) REQUIRE((tokens[i] == 257 && tokens[i + 1] == 256));
  const absl::Status status = tokenizer->encode(std::string(5 << 20, 'a')).status();
  CHECK(id_of(status) == "data.tokens");
  CHECK(error_line(status).find("that cannot be split") != std::string::npos);
}

TEST_CASE("Tokens arrive in order for a text of any length, and the progress callback can stop them",
          "[io][tokenizer]") {
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += fmt::format("{} words, ", i);
  const auto gpt2 = small_gpt2();
  const auto chars = CharTokenizer::from_text(text).value();
  for (const Tokenizer* tokenizer : {static_cast<Tokenizer*>(gpt2.get()), static_cast<Tokenizer*>(chars.get())}) {
    std::string back;
    int64_t last = 0;
    int calls = 0;
    const auto status = tokenizer->encode(
        text,
        [&](std::span<const TokenId> tokens) { return back += tokenizer->decode(tokens).value(), absl::OkStatus(); },
        [&](int64_t done, int64_t total) {
          CHECK(total == static_cast<int64_t>(text.size()));
          CHECK(done >= last);
          last = done;
          ++calls;
          return true;
        });
    CHECK(status.ok());
    CHECK(back == text);
    CHECK(last == static_cast<int64_t>(text.size()));
    CHECK(calls > 10);
    const TokenSink nothing = [](std::span<const TokenId>) { return absl::OkStatus(); };
    CHECK(absl::IsCancelled(tokenizer->encode(text, nothing, [](int64_t, int64_t) { return false; })));
    const TokenSink full = [](std::span<const TokenId>) { return absl::ResourceExhaustedError("full"); };
    CHECK(absl::IsResourceExhausted(tokenizer->encode(text, full)));
  }
}

TEST_CASE("GPT-2 tokens do not depend on the number of threads", "[text][tokenizer]") {
  // Texts without white space or ASCII too, and one with an error far inside. Parts have 64 KiB.
  std::string words, letters, chinese, contractions;
  for (int i = 0; i < 60'000; ++i) {
    words += fmt::format("abc ab{}\n  don't<|endoftext|>", i);
    letters += fmt::format("abcab{}", i);
    chinese += i % 50 ? "\u4e2d\u6587" : "\u3002";
    contractions += i % 7 ? "'s" : "''ab";
  }
  const std::string run(300'000, 'a'), bad = words + "\xff" + words, long_piece = words + std::string(5 << 20, 'b');
  const auto of_threads = [&](const Gpt2Tokenizer& tokenizer, const std::string& text, int threads) {
    at::set_num_threads(threads);
    std::pair<std::vector<TokenId>, std::string> result;
    const auto status = tokenizer.encode(text, [&](std::span<const TokenId> some) {
      result.first.insert(result.first.end(), some.begin(), some.end());
      return absl::OkStatus();
    });
    result.second = status.ok() ? "" : error_line(status);
    return result;
  };
  const int before = at::get_num_threads();
  for (const bool special : {true, false}) {
    const auto tokenizer = small_gpt2({.special_tokens = special});
    for (const std::string& text : {words, letters, chinese, contractions, run, bad, long_piece}) {
      const auto one = of_threads(*tokenizer, text, 1);
      CHECK(one.second.empty() == (text != bad && text != long_piece));
      if (one.second.empty()) CHECK(tokenizer->decode(one.first).value() == text);
      for (const int threads : {2, 3, 7}) CHECK((of_threads(*tokenizer, text, threads) == one));
    }
    const auto error = of_threads(*tokenizer, bad, 3).second;
    CHECK_THAT(error, Catch::Contains(fmt::format("@{:#x}: not UTF-8", words.size())));
  }
  at::set_num_threads(before);
}

TEST_CASE("Documents that are joined have the tokens of each, for any number of threads", "[text][tokenizer]") {
  const auto tokenizer = small_gpt2();
  std::string text;
  std::vector<int64_t> ends;
  std::vector<TokenId> expected;
  for (int i = 0; i < 3'000; ++i) {
    // Also documents without a character, and some of several parts.
    const std::string document = i % 10 == 3     ? ""
                                 : i % 1000 == 5 ? std::string(200'000, 'a') + " 1"
                                                 : fmt::format("{}abc ", i);
    for (const TokenId token : encode(*tokenizer, document)) expected.push_back(token);
    expected.push_back(tokenizer->end_of_text());
    text += document + kDocumentEnd;
    ends.push_back(static_cast<int64_t>(text.size()));
  }
  text += "rest";
  for (const TokenId token : encode(*tokenizer, "rest")) expected.push_back(token);
  const int before = at::get_num_threads();
  for (const int threads : {1, 2, 5}) {
    at::set_num_threads(threads);
    std::vector<TokenId> tokens;
    const TokenSink gather = [&](std::span<const TokenId> some) {
      return tokens.insert(tokens.end(), some.begin(), some.end()), absl::OkStatus();
    };
    CHECK(tokenizer->encode_documents(text, ends, gather).ok());
    CHECK((tokens == expected));
  }
  at::set_num_threads(before);
}

TEST_CASE("A bad vocabulary is refused by file and rule", "[io][tokenizer]") {
  const std::vector<std::pair<std::string, std::string>> faults = {
      {"", "not JSON"},
      {"[1, 2]", "not an object"},
      {"\"text\"", "not an object"},
      {"7", "not an object"},
      {"{\"a\": 0", "not JSON"},
      {"{\"a\": 0, \"\\ud800\": 1}", "not JSON"},  // a lone surrogate
      {"{\"a\xff\": 0}", "not JSON"},
      {vocab() + '\0' + "garbage", "not JSON (got 'a NUL byte'"},
      {vocab({"ab", "abc"}, "<|endoftext|>", "\"a\": 300, "), "token listed twice"},
      {vocab({"ab", "abc"}, "<|endoftext|>", "\"zz\": 256, "), "two tokens have one id"},
      {vocab({"ab", "abc"}, "<|endoftext|>", "\"zz\": 5000, "), "ids have a gap"},
      {vocab({"ab", "abc"}, "<|endoftext|>", "\"zz\": 3000000000, "), "not an id"},
      {vocab({"ab", "abc"}, "<|endoftext|>", "\"zz\": 99999999999999999999, "), "not an id"},
      {vocab({"ab", "abc"}, "<|endoftext|>", "\"zz\": -1, "), "not an id"},
      {vocab({"ab", "abc"}, "<|endoftext|>", "\"zz\": 1.5, "), "not an id"},
      {vocab({"ab", "abc"}, "<|endoftext|>", "\"zz\": \"5\", "), "an id is not a number"},
      {vocab({"ab", "abc"}, "<|endoftext|>", "\"zz\": null, "), "an id is not a number"},
      {vocab({"ab", "abc"}, "<|endoftext|>", "\"zz\": [[]], "), "an id is not a number"},
      {vocab({"ab", "abc"}, "<|endoftext|>", "\"zz\": {}, "), "an id is not a number"},
      {vocab({"ab", "\u4e2d"}), "represents no byte"},
      {vocab({"ab", ""}), "represents no byte"},
      {vocab({"ab", "abc"}, "the_end"), "no token <|endoftext|>"},
      {"{\"<|endoftext|>\": 0}", "no token for a byte"},
      {std::string(100'000, '{'), "not JSON"},
      {std::string(100'000, '['), "not an object"},
  };
  for (const auto& [json, problem] : faults) {
    const absl::Status status = parse(json, kMerges);
    INFO(problem << " / " << error_line(status));
    CHECK(id_of(status) == "data.vocabulary");
    CHECK(exit_code(status) == ExitCode::kData);
    CHECK(error_line(status).find(problem) != std::string::npos);
    CHECK(error_line(status).find("encoder.json") != std::string::npos);
  }
}

TEST_CASE("Bad merges are refused by line and rule; a missing header and CRLF are accepted", "[io][tokenizer]") {
  const std::vector<std::tuple<std::string, std::string, int>> faults = {
      {"", "there are no merges", 1},
      {"#version: 0.2\n", "there are no merges", 1},
      {"#version: 0.3\na b\n", "unknown version", 1},
      {"#version: 0.2\na\n", "not two tokens", 2},
      {"#version: 0.2\na b\nab c d\n", "not two tokens", 3},
      {"a b\n\nab c\n", "not two tokens", 2},
      {"a  b\n", "not two tokens", 1},
      {" b\n", "not two tokens", 1},
      {"a b\nab c\nab c\n", "made by an earlier merge", 3},
      {"a b\nb c\n", "not in the vocabulary", 2},  // the result
      {"a b\nabc d\n", "not in the vocabulary", 2},
      {"a b\nxy c\n", "not in the vocabulary", 2},  // a half
      {"a \u4e2d\n", "represents no byte", 1},
      {"a \xff\n", "represents no byte", 1},
      {vocab(), "not a list of merges", 1},
  };
  for (const auto& [merges, problem, line] : faults) {
    const absl::Status status = parse(vocab(), merges);
    INFO(problem << " / " << error_line(status));
    CHECK(id_of(status) == "data.merges");
    CHECK(error_line(status).find(problem) != std::string::npos);
    CHECK(error_line(status).find(fmt::format("vocab.bpe:{}:", line)) != std::string::npos);
  }
  CHECK(parse(vocab(), "a b\nab c").ok());
  CHECK(parse(vocab(), "#version: 0.2\r\na b\r\nab c\r\n").ok());
}

TEST_CASE("Swapped files are detected", "[io][tokenizer]") {
  CHECK(error_text(parse(kMerges, vocab())).find("swapped?") != std::string::npos);
  CHECK(error_text(parse(vocab(), vocab())).find("swapped?") != std::string::npos);
}

TEST_CASE("Bytes that are not text are printed as replacement characters", "[io][tokenizer]") {
  CHECK(replace_invalid_utf8("a\xff"
                             "b\xc3\xa9\xf0\x9f") == "a\uFFFDb\xc3\xa9\uFFFD\uFFFD");
  CHECK(replace_invalid_utf8("") == "");
}

TEST_CASE("GPT-2's tokens of documents have their ends, and a char tokenizer finds them in the text",
          "[text][documents]") {
  const test::TempDir dir;
  std::ofstream(dir / "a.jsonl") << "{\"text\": \"abc\"}\n{\"text\": \"b<|endoftext|>\"}\n";
  const Documents text = open_documents(dir / "a.jsonl", {}, dir / "prepared").value();
  int tokenized = 0;
  const auto ids_of = [&](const Tokenizer& tokenizer) {
    const TokenizeProgress count = [&](int64_t done, int64_t total) { return tokenized += done == total, true; };
    const TokenFile file = cached_tokens(dir / tokenizer.name(), text, tokenizer, count).value();
    std::vector<int64_t> ids(static_cast<size_t>(file.size()));
    file.read(0, ids);
    return ids;
  };
  for (const bool special : {false, true}) {
    const auto gpt2 = small_gpt2({.special_tokens = special});
    const std::vector<int64_t> ids = ids_of(*gpt2);
    CHECK(std::vector<int64_t>(ids.begin(), ids.begin() + 3) == std::vector<int64_t>{257, 258, 'b'});
    CHECK(std::count(ids.begin(), ids.end(), 258) == (special ? 3 : 2));  // the text of the second may be its end
    CHECK(ids.back() == 258);
    CHECK(ids_of(*gpt2) == ids);
  }
  CHECK(tokenized == 2);  // the others were in the file
  const auto characters = CharTokenizer::from_text(text.content).value();
  const std::vector<int64_t> ids = ids_of(*characters);
  CHECK(ids.size() == 3 + 1 + 14 + 1);
  CHECK(ids[3] == *document_end_token(*characters));
  CHECK_FALSE(document_end_token(*CharTokenizer::from_text("ab").value()));
  // Errors name the text.
  const absl::Status foreign = cached_tokens(dir / "x", text, *CharTokenizer::from_text("abc").value()).status();
  CHECK_THAT(error_line(foreign), Catch::Contains("a.jsonl@0x3: character outside the vocabulary"));
}
