#include <fmt/format.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "read_text.h"
#include "test_util.h"
#include "text/text_record.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/text/documents.h"

using namespace trainkit;
using test::id_of;

namespace {

std::string put_text(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

/// A text with its tokens in a folder.
struct Place {
  test::TempDir dir;
  std::string input = dir / "text.txt", tokens = dir / "text.tokens", record = tokens + ".json";
  DocumentOptions options = {};
  int tokenized = 0;

  CachedText open() const { return CachedText::open(input, options, dir / "prepared", tokens).value(); }

  /// A start of a run: the text of its tokens, and its digest.
  std::pair<std::string, std::string> start() {
    CachedText text = open();
    const auto tokenizer = CharTokenizer::from_text(text.characters().value()).value();
    const TokenizeProgress count = [&](int64_t done, int64_t total) { return tokenized += done == total, true; };
    const TokenFile file = text.tokens(*tokenizer, count).value();
    std::vector<int64_t> ids(static_cast<size_t>(file.size()));
    file.read(0, ids);
    text.update_record();
    return {tokenizer->decode(std::vector<TokenId>(ids.begin(), ids.end())).value(), text.facts().digest};
  }

  /// Makes the text and the record older than any step of a clock, as far as the record can tell.
  void age() const {
    auto saved = trainkit::detail::read_text_record(record).value();
    saved.read_ns = saved.parts[0].changed_ns + trainkit::detail::kSteadyNs;
    REQUIRE(trainkit::detail::write_text_record(record, saved).ok());
  }
};

int64_t field_of(const char* path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name)) return std::stoll(line.substr(name.size()));
  }
  return 0;
}

/// Bytes that `work` adds to the memory of this process at most, pages of mapped files included.
int64_t peak_of(const std::function<void()>& work) {
  std::ofstream("/proc/self/clear_refs") << "5";
  const int64_t before = field_of("/proc/self/status", "VmHWM:");
  work();
  return (field_of("/proc/self/status", "VmHWM:") - before) * 1024;
}

}  // namespace

TEST_CASE("A later start reads neither the text nor its tokens", "[text][cached_text]") {
  Place place;
  std::string text;
  while (text.size() < (size_t{48} << 20)) text += "The quick brown fox jumps over the lazy dog, and again.\n";
  put_text(place.input, text);
  const auto start = [&] {
    CachedText opened = place.open();
    const auto tokenizer = CharTokenizer::from_text(opened.characters().value()).value();
    return opened.tokens(*tokenizer).value().size();
  };
  const auto size = static_cast<int64_t>(text.size());
  CHECK(peak_of([&] { CHECK(start() == size); }) > size);
  place.age();
  CHECK(peak_of([&] { CHECK(start() == size); }) < size / 8);
  CHECK(place.start().first == text);
}

TEST_CASE("A text that has changed is read again, with another time or the same", "[text][cached_text]") {
  Place place;
  put_text(place.input, "to be or not to be");
  const auto first = place.start();
  CHECK(first.first == "to be or not to be");
  CHECK(first.second == Digest::of(first.first));
  CHECK(place.start() == first);
  place.age();
  CHECK(place.start() == first);
  CHECK(place.tokenized == 1);
  // Changed in place, of the same size, with another time.
  put_text(place.input, "or to be not to be");
  CHECK(place.start().first == "or to be not to be");
  CHECK(place.tokenized == 2);
  // With the same time within a step of the clock.
  put_text(place.input, "be to or not to be");
  auto record = trainkit::detail::read_text_record(place.record).value();
  record.parts[0].changed_ns = trainkit::detail::stat_part(place.input)->changed_ns;
  record.read_ns = record.parts[0].changed_ns + trainkit::detail::kSteadyNs - 1;
  REQUIRE(trainkit::detail::write_text_record(place.record, record).ok());
  CHECK(place.start().first == "be to or not to be");
  CHECK(place.tokenized == 3);
  // Touched: the same text with another time. The record then has it.
  place.age();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  std::filesystem::last_write_time(place.input, std::filesystem::file_time_type::clock::now());
  CHECK(place.start().first == "be to or not to be");
  CHECK(place.tokenized == 3);
  CHECK(trainkit::detail::read_text_record(place.record)->parts[0].changed_ns ==
        trainkit::detail::stat_part(place.input)->changed_ns);
}

TEST_CASE("A time that is trusted hides a change: the known limit", "[text][cached_text]") {
  Place place;
  put_text(place.input, "to be or not to be");
  place.start();
  put_text(place.input, "be to or not to be");
  auto record = trainkit::detail::read_text_record(place.record).value();
  record.parts[0].changed_ns = trainkit::detail::stat_part(place.input)->changed_ns;
  record.read_ns = record.parts[0].changed_ns + trainkit::detail::kSteadyNs;
  REQUIRE(trainkit::detail::write_text_record(place.record, record).ok());
  CHECK(place.start().first == "to be or not to be");
}

TEST_CASE("Other options, files of a folder and tokenizers are noticed", "[text][cached_text]") {
  Place place;
  place.input = place.dir / "folder";
  std::filesystem::create_directory(place.input);
  put_text(place.input + "/a.txt", "one\r\n");
  put_text(place.input + "/b.txt", "two\n");
  put_text(place.input + "/c.txt", "");
  CHECK(place.start().first == "one\r\ntwo\n");
  place.age();
  CHECK(place.open().facts().left_out == std::vector<std::string>{"c.txt (empty)"});
  CHECK(place.open().facts().crlf == 1);
  CHECK(place.open().size_bytes() == 9);
  CHECK(place.open().facts().name == place.input + " (3 files)");
  place.options.normalize_newlines = true;
  CHECK(place.start().first == "one\ntwo\n");
  std::filesystem::rename(place.input + "/b.txt", place.input + "/B.txt");
  CHECK(place.start().first == "two\none\n");
  CHECK(place.tokenized == 3);
  // Another tokenizer needs the text again.
  CachedText text = place.open();
  const auto other = CharTokenizer::from_text("two\none\nmore").value();
  CHECK(text.tokens(*other).value().vocab_size() == other->vocab_size());
  CHECK(place.start().first == "two\none\n");
  CHECK(place.tokenized == 4);
  put_text(place.input + "/c.txt", "x");
  CHECK(place.start().first == "two\none\nx\n");
}

TEST_CASE("Documents of JSON lines keep their ends without being read", "[text][cached_text]") {
  Place place;
  place.input = put_text(place.dir / "a.jsonl", "{\"text\": \"one\"}\n{\"text\": \"\"}\n{\"text\": \"two\"}\n");
  const auto first = place.start();
  CHECK(first.first == "one\x03two\x03");
  CHECK(first.second == open_documents(place.input, {}, place.dir / "prepared").value().digest);
  place.age();
  std::filesystem::remove(place.dir / "prepared");
  CHECK(place.start() == first);
  CHECK(place.open().facts().empty_documents == 1);
  CHECK_FALSE(std::filesystem::exists(place.dir / "prepared"));
}

TEST_CASE("Damaged tokens are made again at the start or stop the reader; a damaged record is not used",
          "[text][cached_text]") {
  Place place;
  std::string text;
  for (int i = 0; i < 200'000; ++i) text += "sample\n";
  put_text(place.input, text);
  CHECK(place.start().first == text);
  place.age();
  const auto damage = [&] {
    std::fstream file(place.tokens, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp((1 << 20) + 200);
    file.put(0);
  };
  damage();  // with another time
  CHECK(place.start().first == text);
  CHECK(place.tokenized == 2);
  place.age();
  damage();  // with the same time, as a disk may do
  auto record = trainkit::detail::read_text_record(place.record).value();
  record.tokens.changed_ns = trainkit::detail::stat_part(place.tokens)->changed_ns;
  REQUIRE(trainkit::detail::write_text_record(place.record, record).ok());
  CachedText opened = place.open();
  const TokenFile file = opened.tokens(*CharTokenizer::from_text(text).value()).value();
  std::vector<int64_t> ids(1000);
  file.read(0, ids);
  file.read((1 << 20) - 1000, ids);
  try {
    file.read((1 << 20) - 999, ids);
    FAIL("read damaged tokens");
  } catch (const absl::BadStatusOrAccess& error) {
    CHECK(id_of(error.status()) == "data.tokens");
    CHECK_THAT(error_line(error.status()), Catch::Contains(place.tokens + ": the tokens are damaged"));
  }
  // A copy is verified, and made again.
  std::filesystem::copy_file(place.tokens, place.dir / "copy");
  std::filesystem::rename(place.dir / "copy", place.tokens);
  CHECK(place.start().first == text);
  CHECK(place.tokenized == 3);
  place.age();
  for (const char* bytes : {"", "{}", "{\"trainkit_text\":1,\"digest\":\"\",\"record\":{}}\n"}) {
    put_text(place.record, bytes);
    CHECK_FALSE(trainkit::detail::read_text_record(place.record));
    CHECK(place.start().first == text);
  }
  std::string saved = test::read_text(place.record);
  saved[saved.find("\"crlf\":") + 7] = '7';
  put_text(place.record, saved);
  CHECK_FALSE(trainkit::detail::read_text_record(place.record));
  CHECK(place.tokenized == 3);  // the file of tokens was verified
  // A file that is no record stays.
  put_text(place.record, "mine");
  CHECK(place.start().first == text);
  CHECK(test::read_text(place.record) == "mine");
}

TEST_CASE("Token files without a record, of any version, get one", "[text][cached_text]") {
  Place place;
  put_text(place.input, "to be or not to be");
  const auto first = place.start();
  std::filesystem::remove(place.record);
  CHECK(place.start() == first);
  CHECK(place.tokenized == 1);
  CHECK(trainkit::detail::read_text_record(place.record).has_value());
  // A folder in which nothing can be written is no error.
  std::filesystem::remove(place.record);
  std::filesystem::create_directory(place.record);
  CHECK(place.start() == first);
}
