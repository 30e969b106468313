#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "test_util.h"
#include "trainkit/core/fs.h"
#include "trainkit/text/tokenizer.h"

using namespace trainkit;

namespace {

using test::id_of;

const TokenFileOrigin kOrigin{.vocab_size = 300,
                              .tokenizer_digest = Digest::of("tokenizer"),
                              .source_digest = Digest::of("text"),
                              .source_bytes = 4};

TokenFile make(const std::string& path, const std::vector<TokenId>& tokens, const TokenFileOrigin& origin = kOrigin) {
  const absl::Status status = write_token_file(path, origin, [&](const TokenSink& sink) {
    const size_t half = tokens.size() / 2;  // in two parts
    if (absl::Status first = sink(std::span(tokens).first(half)); !first.ok()) return first;
    return sink(std::span(tokens).subspan(half));
  });
  REQUIRE(status.ok());
  return TokenFile::open(path).value();
}

std::vector<int64_t> read(const TokenFile& file, int64_t begin, int64_t count) {
  std::vector<int64_t> out(count, -7);
  file.read(begin, out);
  return out;
}

std::string slurp(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

void write(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

/// The Status that read throws.
absl::Status thrown(const TokenFile& file, int64_t begin, int64_t count) {
  try {
    read(file, begin, count);
  } catch (const absl::BadStatusOrAccess& error) {
    return error.status();
  }
  return absl::OkStatus();
}

/// The two ends of a file as specified in docs/formats/token-file.md, written without the library's own writer.
struct Ends {
  std::string header, trailer;
};
template <class Number>
void put(std::string& bytes, Number value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}
std::string raw(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2)
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}
Ends ends(uint64_t count, uint64_t vocab_size, uint32_t token_bytes, uint32_t version = 1, uint32_t order = 0x01020304,
          const std::string& contents_digest = std::string(16, 0)) {
  Ends result;
  result.header = "TKTOKENS";
  put(result.header, version);
  put(result.header, order);
  put(result.header, token_bytes);
  put(result.header, uint32_t{0});
  put(result.header, vocab_size);
  put(result.header, uint64_t{4});
  result.header += raw(kOrigin.tokenizer_digest) + raw(kOrigin.source_digest);
  put(result.header, uint64_t{0});
  put(result.trailer, count);
  result.trailer += contents_digest;
  result.trailer += raw(Digest::of(result.header + result.trailer)) + "TKTOKENS";
  return result;
}

}  // namespace

TEST_CASE("Tokens are read back unchanged, with two or four bytes each", "[io][token_file]") {
  const test::TempDir folder;
  std::vector<TokenId> tokens;
  for (uint32_t i = 0; i < 1001; ++i) tokens.push_back(i * 7919 % 65536);
  for (const int64_t vocab_size : {65536, 65537, 200000}) {
    TokenFileOrigin origin = kOrigin;
    origin.vocab_size = vocab_size;
    tokens[500] = static_cast<TokenId>(vocab_size - 1);
    const TokenFile file = make(folder / "f", tokens, origin);
    CHECK(file.size() == 1001);
    CHECK(file.origin() == origin);
    CHECK(read(file, 0, 1001) == std::vector<int64_t>(tokens.begin(), tokens.end()));
    CHECK(read(file, 499, 3) == std::vector<int64_t>(tokens.begin() + 499, tokens.begin() + 502));
    CHECK(read(file, 1001, 0).empty());
    CHECK(file.verify().ok());
    CHECK(std::filesystem::file_size(folder / "f") == (vocab_size == 65536 ? 80 + 2008 + 48 : 80 + 4008 + 48));
    CHECK_THROWS_AS(read(file, 1000, 2), c10::IndexError);
    CHECK_THROWS_AS(read(file, -1, 1), c10::IndexError);
    CHECK_THROWS_AS(read(file, INT64_MAX, 1), c10::IndexError);
  }
}

TEST_CASE("Tokens of up to 256 ids take one byte each, and files with two are still read", "[io][token_file]") {
  const test::TempDir folder;
  std::vector<TokenId> tokens;
  for (uint32_t i = 0; i < 1001; ++i) tokens.push_back(i * 7919 % 256);
  for (const int64_t vocab_size : {256, 257}) {
    TokenFileOrigin origin = kOrigin;
    origin.vocab_size = vocab_size;
    const TokenFile file = make(folder / "f", tokens, origin);
    CHECK(read(file, 0, 1001) == std::vector<int64_t>(tokens.begin(), tokens.end()));
    CHECK(read(file, 500, 3) == std::vector<int64_t>(tokens.begin() + 500, tokens.begin() + 503));
    CHECK(file.verify().ok());
    CHECK(std::filesystem::file_size(folder / "f") == (vocab_size == 256 ? 80 + 1008 + 48 : 80 + 2008 + 48));
  }
  const Ends old = ends(4, 256, 2);
  std::string words;
  for (const uint16_t token : {7, 0, 255, 9}) put(words, token);
  write(folder / "old", old.header + words + old.trailer);
  CHECK(read(TokenFile::open(folder / "old").value(), 0, 4) == std::vector<int64_t>{7, 0, 255, 9});
}

TEST_CASE("The file has the layout that its page in docs/formats specifies", "[io][token_file]") {
  const test::TempDir folder;
  make(folder / "f", {1, 2, 299});
  std::string tokens;
  for (uint16_t token : {1, 2, 299, 0}) put(tokens, token);
  const Ends open = ends(3, 300, 2);
  const Ends expected = ends(3, 300, 2, 1, 0x01020304, raw(Digest::of(open.header + tokens)));
  CHECK((slurp(folder / "f") == expected.header + tokens + expected.trailer));
}

TEST_CASE("Every prefix of a token file is refused", "[io][token_file]") {
  const test::TempDir folder;
  make(folder / "whole", {1, 2, 3, 4, 5});
  const std::string bytes = slurp(folder / "whole");
  for (size_t length = 0; length < bytes.size(); ++length) {
    write(folder / "part", bytes.substr(0, length));
    INFO(length << " bytes");
    CHECK(id_of(TokenFile::open(folder / "part").status()) == "data.tokens");
  }
}

TEST_CASE("Every changed byte is detected by open or verify", "[io][token_file]") {
  const test::TempDir folder;
  make(folder / "whole", {1, 2, 3, 4, 5});
  const std::string bytes = slurp(folder / "whole");
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string changed = bytes;
    changed[at] = static_cast<char>(changed[at] ^ 0x41);
    write(folder / "changed", changed);
    INFO("byte " << at);
    const auto file = TokenFile::open(folder / "changed");
    CHECK(id_of(file.ok() ? file->verify() : file.status()) == "data.tokens");
  }
}

TEST_CASE("A file that is not a token file is refused by name and reason", "[io][token_file]") {
  const test::TempDir folder;
  const std::string path = folder / "f";
  const std::string tokens(2000, 1);
  const auto file = [&](const Ends& e, const std::string& between) { return e.header + between + e.trailer; };
  const std::vector<std::pair<std::string, std::string>> faults = {
      {"", "empty"},
      {"To be, or not to be", "not a token file"},
      {"\x1f\x8b\x08" + std::string(200, 'x'), "not a token file"},
      {file(ends(1000, 300, 2, 3), tokens), "unknown version"},
      {file(ends(1000, 200, 1, 1), tokens), "contradicts itself"},  // one byte in the version that has none
      {file(ends(1000, 200, 2, 2), tokens), "contradicts itself"},
      {file(ends(2000, 300, 1, 2), tokens), "contradicts itself"},
      {file(ends(1000, 300, 2, 1, 0x04030201), tokens), "big-endian"},
      {file(ends(1000, 300, 2, 1, 7), tokens), "contradicts itself"},
      {file(ends(1000, 300, 4), tokens), "contradicts itself"},  // four bytes read as two, or two as four
      {file(ends(1000, 0, 2), tokens), "contradicts itself"},
      {file(ends(1004, 300, 2), tokens), "the size differs from the header"},  // more than the file has
      {file(ends(996, 300, 2), tokens), "the size differs from the header"},
      {file(ends(uint64_t{1} << 63, 300, 2), tokens), "the size differs from the header"},  // times 2 overflows to 0
      {file(ends(1000, 300, 2), tokens + "x"), "the size differs from the header"},         // an extra byte
  };
  for (const auto& [bytes, problem] : faults) {
    write(path, bytes);
    const absl::Status status = TokenFile::open(path).status();
    INFO(problem << " / " << error_line(status));
    CHECK(id_of(status) == "data.tokens");
    CHECK(exit_code(status) == ExitCode::kData);
    CHECK(error_line(status).find(problem) != std::string::npos);
    CHECK(error_line(status).find(path) != std::string::npos);
  }
  CHECK(id_of(TokenFile::open(folder / "none").status()) == "data.missing");
  CHECK(id_of(TokenFile::open(folder.path().string()).status()) == "data.unreadable");
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK(id_of(TokenFile::open(folder / "pipe").status()) == "data.unreadable");
}

TEST_CASE("A token outside the vocabulary is reported with its offset when it is read", "[io][token_file]") {
  const test::TempDir folder;
  std::string bytes = slurp((make(folder / "f", {1, 2, 3, 4, 5}), folder / "f"));
  const uint16_t bad = 300;
  std::memcpy(bytes.data() + 80 + 2 * 3, &bad, sizeof bad);
  write(folder / "bad", bytes);
  const TokenFile file = TokenFile::open(folder / "bad").value();
  CHECK(read(file, 0, 3) == std::vector<int64_t>{1, 2, 3});
  const absl::Status status = thrown(file, 1, 4);
  CHECK(id_of(status) == "data.tokens");
  INFO(error_line(status));
  CHECK(error_line(status).find("bad@0x56: token outside the vocabulary (got '300', expected 0..299)") !=
        std::string::npos);
}

TEST_CASE("Only complete files of valid tokens appear", "[io][token_file]") {
  const test::TempDir folder;
  const std::string path = folder / "f";
  const auto give = [](std::vector<TokenId> tokens) {
    return [tokens](const TokenSink& sink) { return sink(tokens); };
  };
  CHECK(id_of(write_token_file(path, kOrigin, give({1, 300}))) == "data.tokens");
  CHECK(absl::IsCancelled(
      write_token_file(path, kOrigin, [](const TokenSink&) { return absl::CancelledError("stop"); })));
  CHECK(std::filesystem::is_empty(folder.path()));
  make(path, {7});
  CHECK_FALSE(write_token_file(path, kOrigin, give({300})).ok());
  CHECK(read(TokenFile::open(path).value(), 0, 1) == std::vector<int64_t>{7});  // the old one is kept
  CHECK(exit_code(write_token_file(folder / "no/f", kOrigin, give({1}))) == ExitCode::kStorage);
}

TEST_CASE("A file that shrinks while it is read is an error, not a signal", "[io][token_file]") {
  const test::TempDir folder;
  const TokenFile file = make(folder / "f", std::vector<TokenId>(100'000, 5));
  CHECK(read(file, 90'000, 1) == std::vector<int64_t>{5});
  REQUIRE(::truncate((folder / "f").c_str(), 10'000) == 0);
  CHECK(id_of(file.check()) == "data.damaged");
  CHECK(id_of(thrown(file, 50'000, 10)) == "data.damaged");
  CHECK(id_of(thrown(file, 0, 10)) == "data.damaged");  // after damage the file is no longer used
  CHECK(id_of(file.verify()) == "data.damaged");
}

TEST_CASE("More than 2^31 tokens are read correctly", "[io][token_file]") {
  const test::TempDir folder;
  constexpr uint64_t kCount = (uint64_t{1} << 31) + 1000;
  const Ends e = ends(kCount, 300, 2);
  const int descriptor = ::open((folder / "f").c_str(), O_CREAT | O_WRONLY, 0600);
  const uint16_t last = 299;
  REQUIRE(::pwrite(descriptor, e.header.data(), 80, 0) == 80);  // a hole between the ends
  REQUIRE(::pwrite(descriptor, &last, 2, 80 + 2 * (kCount - 1)) == 2);
  REQUIRE(::pwrite(descriptor, e.trailer.data(), 48, 80 + 2 * kCount) == 48);
  ::close(descriptor);
  const TokenFile file = TokenFile::open(folder / "f").value();
  CHECK(file.size() == static_cast<int64_t>(kCount));
  CHECK(read(file, static_cast<int64_t>(kCount) - 2, 2) == std::vector<int64_t>{0, 299});
}

TEST_CASE("A cache is used while text and tokenizer are unchanged, and rebuilt otherwise", "[io][token_file]") {
  const test::TempDir folder;
  const std::string path = folder / "cache";
  const std::string text = "the text";
  const auto tokenizer = CharTokenizer::from_text(text).value();
  const auto other = CharTokenizer::from_text(text + "!").value();
  int made = 0;
  const TokenizeProgress count = [&](int64_t done, int64_t total) { return made += done == total, true; };
  const auto tokens = [&](std::string_view of, const Tokenizer& by) {
    const TokenFile file = cached_tokens(path, of, by, count).value();
    CHECK(file.check_origin(origin_of(of, by)).ok());
    const auto ids = by.encode(of).value();
    CHECK(read(file, 0, file.size()) == std::vector<int64_t>(ids.begin(), ids.end()));
    return file;
  };
  tokens(text, *tokenizer);
  CHECK(made == 1);
  tokens(text, *tokenizer);
  CHECK(made == 1);
  const TokenFile file = tokens("the next", *CharTokenizer::from_text("the next").value());
  CHECK(made == 2);
  CHECK(id_of(file.check_origin(origin_of(text, *tokenizer))) == "data.stale");
  tokens(text, *tokenizer);
  tokens(text, *other);
  CHECK(made == 4);
  std::string damaged = slurp(path);
  damaged[81] ^= 1;
  write(path, damaged);
  tokens(text, *other);
  CHECK(made == 5);
  write(path, "");
  tokens(text, *other);
  CHECK(made == 6);
  CHECK(id_of(cached_tokens(path, "xyz", *tokenizer).status()) == "data.tokens");
  CHECK(absl::IsCancelled(
      cached_tokens(folder / "new", text, *tokenizer, [](int64_t, int64_t) { return false; }).status()));
}
