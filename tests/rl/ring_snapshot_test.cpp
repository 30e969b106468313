#include "rl/ring_snapshot.h"

#include <array>
#include <cstring>
#include <thread>

#include "rl/row_ring.h"
#include "test_util.h"
#include "trainkit/core/error.h"

using namespace trainkit;
using namespace trainkit::test;
using trainkit::detail::read_rows;
using trainkit::detail::RingSnapshot;
using trainkit::detail::RowRing;

namespace {

std::vector<FieldSpec> fields() { return {{"a", at::kLong, {}}, {"b", at::kInt, {3}}}; }

void put(RowRing& ring, int64_t row) {
  std::vector<std::byte> bytes(static_cast<size_t>(ring.row_bytes()));
  const int64_t a = row;
  const std::array<int32_t, 3> b = {static_cast<int32_t>(row), static_cast<int32_t>(row + 1),
                                    static_cast<int32_t>(row + 2)};
  std::memcpy(bytes.data(), &a, sizeof(a));
  std::memcpy(bytes.data() + sizeof(a), b.data(), sizeof(b));
  ring.write(row, row + 1, bytes.data());
}

bool has(const RowRing& ring, int64_t row) {
  std::vector<std::byte> bytes(static_cast<size_t>(ring.row_bytes()));
  ring.read(row, row + 1, bytes.data());
  int64_t a = 0;
  std::array<int32_t, 3> b = {};
  std::memcpy(&a, bytes.data(), sizeof(a));
  std::memcpy(b.data(), bytes.data() + sizeof(a), sizeof(b));
  return a == row && b[0] == row && b[1] == row + 1 && b[2] == row + 2;
}

/// Writes a file of `snapshot`, and opens it.
ReadableFile written(const TempDir& dir, RingSnapshot& snapshot, const std::string& name = "rows") {
  const Directory folder = Fs::posix().open_directory(dir.path()).value();
  WritableFile file = folder.create_file(name).value();
  REQUIRE(snapshot.write(file) == absl::OkStatus());
  CHECK(file.size_bytes() == snapshot.bytes());
  REQUIRE(file.close().ok());
  return folder.open_file(name).value();
}

}  // namespace

TEST_CASE("A snapshot has the rows of its moment, whatever is overwritten before it is written", "[rl][replay]") {
  const TempDir dir;
  RowRing ring(fields(), 10);
  for (int64_t row = 0; row < 17; ++row) put(ring, row);
  RingSnapshot snapshot(ring, 8, 17, /*segment_bytes=*/3 * ring.row_bytes());  // rows 8-10, 11-13, 14-16
  snapshot.preserve(7, 12);                                                    // of the first and the second segment
  for (int64_t row = 17; row < 22; ++row) put(ring, row);
  const ReadableFile file = written(dir, snapshot);
  snapshot.preserve(0, 30);  // nothing is left to copy
  int64_t begin = 0, end = 0;
  const int64_t slots = GENERATE(10, 9, 4);
  RowRing read(fields(), slots);
  REQUIRE(read_rows(file, read, begin, end) == absl::OkStatus());
  CHECK(end == 17);
  CHECK(begin == std::max<int64_t>(8, 17 - slots));
  for (int64_t row = begin; row < end; ++row) CHECK(has(read, row));
}

TEST_CASE("Appenders overwrite rows while a snapshot is written", "[rl][replay]") {
  const TempDir dir;
  constexpr int64_t kSlots = 3000;
  RowRing ring(fields(), kSlots);
  for (int64_t row = 0; row < kSlots; ++row) put(ring, row);
  RingSnapshot snapshot(ring, 0, kSlots, /*segment_bytes=*/100 * ring.row_bytes());
  std::vector<std::thread> appenders;
  for (int64_t thread = 0; thread < 3; ++thread) {
    appenders.emplace_back([&, thread] {
      for (int64_t row = thread; row < kSlots; row += 3) {
        snapshot.preserve(row, row + 1);
        put(ring, row + kSlots);
      }
    });
  }
  const ReadableFile file = written(dir, snapshot);
  for (std::thread& appender : appenders) appender.join();
  RowRing read(fields(), kSlots);
  int64_t begin = 0, end = 0, wrong = 0;
  REQUIRE(read_rows(file, read, begin, end) == absl::OkStatus());
  for (int64_t row = begin; row < end; ++row) wrong += has(read, row) ? 0 : 1;
  CHECK(end - begin == kSlots);
  CHECK(wrong == 0);
}

TEST_CASE("A file of other rows is refused with exit code 5", "[rl][replay]") {
  const TempDir dir;
  RowRing ring(fields(), 10);
  for (int64_t row = 0; row < 10; ++row) put(ring, row);
  RingSnapshot snapshot(ring, 0, 10);
  written(dir, snapshot);
  const Directory folder = Fs::posix().open_directory(dir.path()).value();
  std::string bytes = folder.read_file("rows", 1 << 20).value();
  const auto read = [&](const std::string& name, const std::string& text, RowRing& target) {
    REQUIRE(write_file_atomically(folder, name, text).ok());
    int64_t begin = 0, end = 0;
    return read_rows(folder.open_file(name).value(), target, begin, end);
  };
  RowRing same(fields(), 10), other({{"a", at::kLong, {}}}, 10);
  CHECK(read("same", bytes, same).ok());
  for (const absl::Status& status :
       {read("short", bytes.substr(0, 20), same), read("cut", bytes.substr(0, bytes.size() - 1), same),
        read("long", bytes + "x", same), read("fields", bytes, other), read("other", std::string(200, 'x'), same)}) {
    CHECK(exit_code(status) == ExitCode::kWeights);
    CHECK(id_of(status) == "ckpt.source");
  }
}
