#include "trainkit/io/mapped_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <thread>

#include "test_util.h"

using namespace trainkit;

namespace {

using test::id_of;

constexpr size_t kPage = 4096;

std::string write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

}  // namespace

TEST_CASE("A mapped file has the bytes of the file", "[io][mapped_file]") {
  const test::TempDir folder;
  const std::string bytes("a\0b\nc", 5);
  const auto file = MappedFile::open(write(folder / "f", bytes)).value();
  CHECK(file->text() == bytes);
  CHECK(file->bytes().size() == 5);
  CHECK(file->check().ok());
  CHECK_FALSE(file->damaged());
  CHECK(MappedFile::open(write(folder / "empty", "")).value()->text().empty());
}

TEST_CASE("Anything except a readable regular file is refused immediately with its name", "[io][mapped_file]") {
  const test::TempDir folder;
  const std::string pipe = folder / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  for (const auto& [path, id] :
       std::vector<std::pair<std::string, std::string>>{{folder / "nothing", "data.missing"},
                                                        {folder / "no/folder", "data.missing"},
                                                        {folder.path().string(), "data.unreadable"},
                                                        {pipe, "data.unreadable"},
                                                        {"/dev/zero", "data.unreadable"}}) {
    const absl::Status status = MappedFile::open(path).status();
    CHECK(id_of(status) == id);
    CHECK(exit_code(status) == ExitCode::kData);
    CHECK(error_line(status).find(path) != std::string::npos);
  }
  if (::geteuid() != 0) {  // root can read everything
    const std::string secret = write(folder / "secret", "x");
    ::chmod(secret.c_str(), 0);
    CHECK(id_of(MappedFile::open(secret).status()) == "data.unreadable");
  }
}

TEST_CASE("A file that shrinks while mapped reads as zeros, and only that file is marked", "[io][mapped_file]") {
  const test::TempDir folder;
  const std::string path = write(folder / "f", std::string(10 * kPage, 'x'));
  const auto file = MappedFile::open(path).value();
  const auto other = MappedFile::open(write(folder / "other", std::string(10 * kPage, 'y'))).value();
  REQUIRE(::truncate(path.c_str(), 2 * kPage + 10) == 0);
  CHECK(file->text()[2 * kPage + 9] == 'x');
  CHECK(file->text()[2 * kPage + 10] == 0);  // the rest of the last page: no fault
  CHECK_FALSE(file->damaged());
  CHECK(id_of(file->check()) == "data.damaged");
  CHECK(file->text()[7 * kPage] == 0);
  CHECK(file->damaged());
  for (size_t i = 3 * kPage; i < 10 * kPage; ++i) REQUIRE(file->text()[i] == 0);
  CHECK(file->text()[0] == 'x');
  CHECK(file->check().code() == absl::StatusCode::kDataLoss);
  CHECK(other->check().ok());
  CHECK(other->text()[7 * kPage] == 'y');
}

TEST_CASE("Threads that read while the file shrinks survive", "[io][mapped_file]") {
  const test::TempDir folder;
  for (int round = 0; round < 20; ++round) {
    const std::string path = write(folder / "f", std::string(64 * kPage, 'x'));
    const auto file = MappedFile::open(path).value();
    std::atomic<bool> cut{false};
    std::atomic<int64_t> strange{0};
    std::vector<std::thread> readers;
    for (int i = 0; i < 3; ++i) {
      readers.emplace_back([&] {
        for (bool last = false; !last;) {
          last = cut.load();  // one complete pass after the truncation
          strange += std::count_if(file->text().begin(), file->text().end(), [](char c) { return c != 'x' && c != 0; });
        }
      });
    }
    REQUIRE(::truncate(path.c_str(), kPage) == 0);
    cut = true;
    for (std::thread& reader : readers) reader.join();
    CHECK(strange == 0);
    CHECK(file->damaged());
  }
}

TEST_CASE("The table of maps is reused after maps are closed", "[io][mapped_file]") {
  const test::TempDir folder;
  const std::string path = write(folder / "f", std::string(2 * kPage, 'x'));
  for (int i = 0; i < 1000; ++i) {
    const auto file = MappedFile::open(path).value();
    REQUIRE_FALSE(file->damaged());
  }
  const auto file = MappedFile::open(path).value();
  REQUIRE(::truncate(path.c_str(), 0) == 0);
  CHECK(file->text()[kPage] == 0);
  CHECK(file->damaged());
}
