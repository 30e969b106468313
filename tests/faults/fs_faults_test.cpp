// write_file_atomically on a disk that fails at each of its calls.
#include "fault_disk.h"
#include "test_util.h"

using namespace trainkit;
using test::Fault;
using test::FaultDisk;
using test::PowerLoss;

namespace {

constexpr char kPath[] = "/run/file";

/// A disk that has the file with its old contents.
std::unique_ptr<FaultDisk> disk_with_old() {
  auto disk = std::make_unique<FaultDisk>();
  REQUIRE(Fs(*disk).create_directories("/run").ok());
  REQUIRE(write_file_atomically(Fs(*disk), kPath, "old") == absl::OkStatus());
  return disk;
}

int calls_of_a_write() {
  const auto disk = disk_with_old();
  disk->arm({});
  REQUIRE(write_file_atomically(Fs(*disk), kPath, "new contents").ok());
  return disk->calls();
}

std::string contents(FaultDisk& disk) { return Fs(disk).read_file(kPath, 100).value_or("nothing"); }

}  // namespace

TEST_CASE("An atomic write that dies at any call leaves the old contents or the new", "[faults][fs]") {
  const int calls = calls_of_a_write();
  REQUIRE(calls > 6);
  for (const auto kind : {Fault::kCrash, Fault::kCrashAfter}) {
    for (int at = 0; at < calls; ++at) {
      for (const auto loss : {PowerLoss::kNone, PowerLoss::kAll, PowerLoss::kRandom}) {
        for (uint64_t seed = 0; seed < (loss == PowerLoss::kRandom ? 8 : 1); ++seed) {
          const auto disk = disk_with_old();
          disk->arm({.kind = kind, .at = at, .error = 0});
          const bool ok = write_file_atomically(Fs(*disk), kPath, "new contents").ok();
          disk->restart(loss, seed);
          const std::string found = contents(*disk);
          CAPTURE(kind, at, loss, seed);
          REQUIRE((found == "new contents" || (found == "old" && !ok)));
        }
      }
    }
  }
}

TEST_CASE("An atomic write that is interrupted or cut short at any call succeeds", "[faults][fs]") {
  const int calls = calls_of_a_write();
  for (const Fault& fault :
       {Fault{.kind = Fault::kError, .at = 0, .error = EINTR}, Fault{.kind = Fault::kShort, .at = 0, .error = 0}}) {
    for (int at = 0; at < calls; ++at) {
      const auto disk = disk_with_old();
      disk->arm({.kind = fault.kind, .at = at, .error = fault.error});
      CAPTURE(fault.kind, at);
      REQUIRE(write_file_atomically(Fs(*disk), kPath, "new contents") == absl::OkStatus());
      disk->restart(PowerLoss::kAll);
      REQUIRE(contents(*disk) == "new contents");
    }
  }
}

TEST_CASE("An atomic write that fails at any call reports it and leaves no temporary file", "[faults][fs]") {
  const int calls = calls_of_a_write();
  for (const int error : {EIO, ENOSPC, EDQUOT, EROFS}) {
    for (int at = 0; at < calls; ++at) {
      const auto disk = disk_with_old();
      disk->arm({.kind = Fault::kError, .at = at, .error = error});
      const absl::Status status = write_file_atomically(Fs(*disk), kPath, "new contents");
      CAPTURE(error, at, disk->struck(), status.ToString());
      if (!status.ok()) {
        REQUIRE(exit_code(status) == ExitCode::kStorage);
        REQUIRE(error_of(status)->where.starts_with("/run"));
      }
      REQUIRE(disk->paths() == std::vector<std::string>{"/run", "/run/file"});
      disk->restart(PowerLoss::kAll);
      const std::string found = contents(*disk);
      REQUIRE((found == "new contents" || (found == "old" && !status.ok())));
    }
  }
}
