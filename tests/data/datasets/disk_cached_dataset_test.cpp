#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <set>

#include "data/test_datasets.h"
#include "test_util.h"
#include "trainkit/data/adapters.h"
#include "trainkit/data/tensor_dataset.h"

using namespace trainkit;

namespace {

/// Rows with 3 fields, with a count of reads; reading a row of `bad` fails.
class Counted final : public Dataset {
 public:
  explicit Counted(int64_t rows, std::set<int64_t> bad = {}) : rows_(rows), bad_(std::move(bad)) {}
  int64_t size() const override { return rows_; }
  const std::vector<FieldSpec>& fields() const override {
    static const std::vector<FieldSpec> fields = {
        {"x", at::kByte, {1001}}, {"y", at::kFloat, {7}}, {"n", at::kLong, {}}};
    return fields;
  }
  void get(const RowKey& key, const BatchView& out, int64_t at) const override {
    ++reads;
    if (bad_.contains(key.index)) throw std::runtime_error("row is bad");
    for (int64_t i = 0; i < 1001; ++i) out.row<uint8_t>(0, at)[i] = static_cast<uint8_t>(key.index * 7 + i);
    for (int64_t i = 0; i < 7; ++i)
      out.row<float>(1, at)[i] = static_cast<float>(key.index) / static_cast<float>(i + 1);
    *out.row<int64_t>(2, at) = key.index;
  }
  mutable std::atomic<int64_t> reads{0};

 private:
  int64_t rows_;
  std::set<int64_t> bad_;
};

/// All fields of a row as bytes.
std::string row_of(const Dataset& dataset, int64_t index) {
  std::string bytes;
  std::vector<std::string> memory;
  for (const FieldSpec& field : dataset.fields()) memory.emplace_back(static_cast<size_t>(field.row_bytes()), '?');
  std::vector<BatchView::Field> places;
  for (auto& field : memory) places.push_back({reinterpret_cast<std::byte*>(field.data()), std::ssize(field)});
  dataset.get({.index = index, .origin = index}, BatchView(places, 1), 0);
  for (const auto& field : memory) bytes += field;
  return bytes;
}

std::shared_ptr<const DiskCachedDataset> open(std::shared_ptr<const Dataset> dataset, const std::string& path,
                                              const std::string& origin = "one") {
  auto cached = DiskCachedDataset::open(std::move(dataset), path, origin);
  REQUIRE(cached.status() == absl::OkStatus());
  return *cached;
}

void overwrite(const std::string& path, int64_t offset, const std::string& bytes) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(offset);
  file << bytes;
}

}  // namespace

TEST_CASE("A row is read from the dataset once, whichever process opens the cache", "[data][disk_cached_dataset]") {
  const test::TempDir folder;
  const auto rows = std::make_shared<Counted>(50);
  const std::string path = folder / "deep/rows";
  {
    const auto cached = open(rows, path);
    CHECK(std::filesystem::file_size(path) == static_cast<size_t>(DiskCachedDataset::file_bytes(*rows)));
    CHECK(cached->cached_rows() == 0);
    for (int64_t i = 0; i < 50; ++i) CHECK(row_of(*cached, i) == row_of(Counted(50), i));
    CHECK(rows->reads == 50);
    for (int64_t i = 0; i < 50; ++i) CHECK(row_of(*cached, i) == row_of(Counted(50), i));
    CHECK(rows->reads == 50);
    CHECK(cached->cached_rows() == 50);
    CHECK(cached->write_status() == absl::OkStatus());
  }
  const auto again = open(rows, path);
  CHECK(again->cached_rows() == 50);
  for (int64_t i = 0; i < 50; ++i) CHECK(row_of(*again, i) == row_of(Counted(50), i));
  CHECK(rows->reads == 50);
}

TEST_CASE("A build by several threads resumes after an interruption", "[data][disk_cached_dataset]") {
  const test::TempDir folder;
  const auto rows = std::make_shared<Counted>(200, std::set<int64_t>{3, 77});
  int64_t told = 0;
  const auto stopped = open(rows, folder / "rows")->build(3, [&](int64_t done, int64_t total) {
    CHECK(total == 200);
    return (told = done) < 60;
  });
  CHECK(absl::IsCancelled(stopped.status()));
  CHECK(told >= 60);
  const int64_t before = rows->reads;
  CHECK(before < 70);
  const auto cached = open(rows, folder / "rows");
  const auto built = cached->build(3, [&](int64_t done, int64_t) {
    told = done;
    return true;
  });
  REQUIRE(built.status() == absl::OkStatus());
  CHECK(built->cached_rows == 198);
  CHECK(built->refused == std::vector<int64_t>{3, 77});
  CHECK(told == 200);
  CHECK(rows->reads <= 200 + 2);  // bad rows are read again
  CHECK_THROWS_WITH(row_of(*cached, 77), "row is bad");
  CHECK(row_of(*cached, 78) == row_of(Counted(200), 78));
}

TEST_CASE("A damaged row is read from the dataset again, whichever byte is damaged", "[data][disk_cached_dataset]") {
  const test::TempDir folder;
  const auto rows = std::make_shared<Counted>(4);
  REQUIRE(open(rows, folder / "rows")->build(1).status() == absl::OkStatus());
  const int64_t begin = 8192, stride = 1088;  // docs/formats/row-cache.md: 1001 + 28 + 8 bytes, rounded up to 64
  REQUIRE(std::filesystem::file_size(folder / "rows") == static_cast<size_t>(begin + 4 * stride));
  for (const int64_t offset : {begin, begin + stride + 500, begin + 2 * stride + 1036, int64_t{4096 + 3 * 16 + 5}}) {
    overwrite(folder / "rows", offset, "\xa5");
  }
  rows->reads = 0;
  const auto cached = open(rows, folder / "rows");
  for (int64_t i = 0; i < 4; ++i) CHECK(row_of(*cached, i) == row_of(Counted(4), i));
  CHECK(rows->reads == 4);
  const auto repaired = open(rows, folder / "rows");
  for (int64_t i = 0; i < 4; ++i) CHECK(row_of(*repaired, i) == row_of(Counted(4), i));
  CHECK(rows->reads == 4);
}

TEST_CASE("A cache of other rows is replaced", "[data][disk_cached_dataset]") {
  const test::TempDir folder;
  const std::string path = folder / "rows";
  const auto rows = std::make_shared<Counted>(10);
  const auto fill = [&] { REQUIRE(open(rows, path)->build(1).status() == absl::OkStatus()); };
  fill();
  CHECK(open(rows, path)->cached_rows() == 10);
  CHECK(open(rows, path, "two")->cached_rows() == 0);
  fill();
  CHECK(open(std::make_shared<Counted>(11), path)->cached_rows() == 0);
  fill();
  const auto other = std::make_shared<TensorDataset>(TensorDataset({{"x", torch::zeros({10, 4})}}));
  CHECK(open(other, path)->cached_rows() == 0);
  for (const int64_t offset : {8, 20, 40, 70}) {
    fill();
    overwrite(path, offset, "\xa5");
    CHECK(open(rows, path)->cached_rows() == 0);
  }
  fill();
  std::filesystem::resize_file(path, 5000);
  CHECK(open(rows, path)->cached_rows() == 0);
}

TEST_CASE("A file that is no cache is not replaced by one", "[data][disk_cached_dataset]") {
  const test::TempDir folder;
  std::ofstream(folder / "rows") << "text";
  const absl::Status refused = DiskCachedDataset::open(std::make_shared<Counted>(2), folder / "rows", "one").status();
  CHECK(exit_code(refused) == ExitCode::kUsage);
  CHECK_THAT(error_line(refused), Catch::Contains("error[storage.foreign] " + (folder / "rows")));
  CHECK(std::filesystem::file_size(folder / "rows") == 4);
}

TEST_CASE("A cache that is truncated while it is open gives correct rows", "[data][disk_cached_dataset]") {
  const test::TempDir folder;
  const auto rows = std::make_shared<Counted>(100);
  const auto cached = open(rows, folder / "rows");
  REQUIRE(cached->build(1).status() == absl::OkStatus());
  const bool rows_are_checked = GENERATE(false, true);  // the digest of a row is compared in its first read
  for (int64_t i = 0; rows_are_checked && i < 100; ++i) row_of(*cached, i);
  std::filesystem::resize_file(folder / "rows", 20'000);
  for (int64_t i = 0; i < 100; ++i) CHECK(row_of(*cached, i) == row_of(Counted(100), i));
}

TEST_CASE("A process that is killed leaves no wrong row", "[data][disk_cached_dataset]") {
  const test::TempDir folder;
  const std::string path = folder / "rows";
  for (int round = 0; round < 20; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      const auto cached = DiskCachedDataset::open(std::make_shared<Counted>(5000), path, "one");
      for (int64_t i = 0; cached.ok(); i = (i + 617) % 5000) row_of(**cached, i);
      ::_exit(1);
    }
    ::usleep(static_cast<useconds_t>(500 + 1500 * round));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    const auto cached = open(std::make_shared<Counted>(5000), path);
    for (int64_t i = 0; i < 5000; i += 97) CHECK(row_of(*cached, i) == row_of(Counted(5000), i));
  }
}

TEST_CASE("Insufficient disk space is reported before any row is read", "[data][disk_cached_dataset]") {
  const test::TempDir folder;
  const auto rows = std::make_shared<Counted>(1'000'000);
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit = {};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &limit) == 0);
  const rlimit small = {1 << 20, limit.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  const auto cached = DiskCachedDataset::open(rows, folder / "rows", "one");
  ::setrlimit(RLIMIT_FSIZE, &limit);
  std::signal(SIGXFSZ, before);
  CHECK(exit_code(cached.status()) == ExitCode::kStorage);
  CHECK_THAT(error_line(cached.status()),
             Catch::Contains("error[storage.cache]") && Catch::Contains("not enough space for a cache of 1,104,0"));
  CHECK(std::filesystem::is_empty(folder.path()));
  CHECK(rows->reads == 0);
  CHECK_THROWS_AS(DiskCachedDataset::open(nullptr, folder / "rows", "").status(), c10::ValueError);
}

TEST_CASE("A disk that fails during a cache build ends the build at once, and finished rows stay",
          "[data][disk_cached_dataset]") {
  const test::TempDir folder;
  const auto rows = std::make_shared<Counted>(400);
  const auto cached = open(rows, folder / "rows");
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit = {};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &limit) == 0);
  const rlimit small = {100 << 10, limit.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  const auto built = cached->build(2);
  ::setrlimit(RLIMIT_FSIZE, &limit);
  std::signal(SIGXFSZ, before);
  CHECK(exit_code(built.status()) == ExitCode::kStorage);
  CHECK_THAT(error_line(built.status()), Catch::Contains("cannot write a row of the cache"));
  CHECK(rows->reads < 100);  // 400 rows are 430 KB
  const int64_t there = cached->cached_rows();
  CHECK(there > 50);
  REQUIRE(open(rows, folder / "rows")->build(2).status() == absl::OkStatus());
  CHECK(rows->reads <= 400 + 4);
}
