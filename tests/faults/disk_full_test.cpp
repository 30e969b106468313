// A real file system that is full at 64 levels. Needs permission to mount; skipped otherwise.
#include <ATen/Functions.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "test_util.h"
#include "tmpfs.h"
#include "trainkit/train/checkpoint.h"

using namespace trainkit;
using test::Tmpfs;
namespace stdfs = std::filesystem;

namespace {

CheckpointContents contents_of(double value) {
  return {
      .model = {{"w", at::full({64 << 10}, value)}}, .optimizer = {{"m", at::full({64 << 10}, value)}}, .state = {}};
}

bool has_temporary(const std::string& folder) {
  for (const auto& entry : stdfs::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with(".tmp-")) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("A disk that is full at any of 64 levels keeps the last good checkpoint and reports the missing space",
          "[faults][checkpoint]") {
  const Tmpfs disk("size=2m");
  if (!disk.mounted()) TRAINKIT_SKIP("this user cannot mount a tmpfs");
  auto store = CheckpointStore::open(disk / "run", {.keep_last = 1}).value();
  REQUIRE(store.save(1, contents_of(1)) == absl::OkStatus());
  int full = 0, saved = 0;
  for (int level = 0; level < 64; ++level) {
    std::ofstream(disk / "ballast") << std::string(static_cast<size_t>(level) * (32 << 10), 'x');
    const int64_t last = store.latest().value();
    const absl::Status status = store.save(last + 1, contents_of(static_cast<double>(last + 1)));
    CAPTURE(level, status.ToString());
    if (status.ok()) {
      ++saved;
    } else {
      ++full;
      const auto error = error_of(status);
      REQUIRE(exit_code(status) == ExitCode::kStorage);
      REQUIRE(error->id == "ckpt.space");
      REQUIRE(error->got.ends_with("free"));
      REQUIRE_FALSE(error->expected.empty());
    }
    REQUIRE_FALSE(has_temporary(store.path()));
    const int64_t now = store.latest().value();
    REQUIRE(now == (status.ok() ? last + 1 : last));
    REQUIRE(at::equal(store.load(now).value().model.at(0).second,
                      contents_of(static_cast<double>(now)).model.at(0).second));
  }
  CHECK(full > 8);
  CHECK(saved > 8);
}

TEST_CASE("A disk without free inodes keeps the last good checkpoint", "[faults][checkpoint]") {
  const Tmpfs disk("size=64m,nr_inodes=24");
  if (!disk.mounted()) TRAINKIT_SKIP("this user cannot mount a tmpfs");
  auto store = CheckpointStore::open(disk / "run", {.keep_last = 1}).value();
  REQUIRE(store.save(1, contents_of(1)) == absl::OkStatus());
  int full = 0;
  for (int file = 0; file < 24; ++file) {
    std::ofstream(disk / ("ballast-" + std::to_string(file))) << "x";
    const int64_t last = store.latest().value();
    const absl::Status status = store.save(last + 1, contents_of(static_cast<double>(last + 1)));
    CAPTURE(file, status.ToString());
    full += !status.ok();
    if (!status.ok()) REQUIRE(exit_code(status) == ExitCode::kStorage);
    REQUIRE_FALSE(has_temporary(store.path()));
    REQUIRE(store.load(store.latest().value()).status() == absl::OkStatus());
  }
  CHECK(full > 4);
}
