// The disk in memory answers as the kernel does, and loses unflushed data.
#include "fault_disk.h"

#include <fcntl.h>
#include <linux/fs.h>

#include <cstring>

#include "test_util.h"

using namespace trainkit;
using test::Fault;
using test::FaultDisk;
using test::PowerLoss;

namespace {

/// Return values of a sequence of calls in the folder `root` of either disk.
std::vector<std::string> answers(SystemCalls& calls, const std::string& root) {
  std::vector<std::string> all;
  const auto note = [&](const char* what, int64_t result) {
    all.push_back(std::string(what) + " " + (result < 0 ? strerrorname_np(static_cast<int>(-result)) : "ok"));
    return static_cast<int>(result);
  };
  struct stat info {};
  std::vector<std::string> names;
  const int dir = note("open root", calls.openat(AT_FDCWD, root.c_str(), O_RDONLY | O_DIRECTORY, 0));
  note("open none", calls.openat(dir, "a", O_RDONLY, 0));
  const int a = note("create", calls.openat(dir, "a", O_WRONLY | O_CREAT | O_EXCL, 0600));
  note("create again", calls.openat(dir, "a", O_WRONLY | O_CREAT | O_EXCL, 0600));
  note("write", calls.pwrite(a, "hello", 5, 0));
  note("fsync", calls.fsync(a));
  note("close", calls.close(a));
  note("close again", calls.close(a));
  note("stat", calls.fstatat(dir, "a", &info));
  all.push_back("size " + std::to_string(info.st_size) + (S_ISREG(info.st_mode) ? " file" : " other"));
  note("open file as directory", calls.openat(dir, "a", O_RDONLY | O_DIRECTORY, 0));
  note("mkdir", calls.mkdirat(dir, "d", 0700));
  note("mkdir again", calls.mkdirat(dir, "d", 0700));
  note("unlink directory", calls.unlinkat(dir, "d", 0));
  note("rmdir file", calls.unlinkat(dir, "a", AT_REMOVEDIR));
  const int d = note("open directory", calls.openat(dir, "d", O_RDONLY | O_DIRECTORY, 0));
  const int b = note("create below", calls.openat(d, "b", O_WRONLY | O_CREAT | O_EXCL, 0600));
  note("close", calls.close(b));
  note("rmdir full", calls.unlinkat(dir, "d", AT_REMOVEDIR));
  note("rename none", calls.renameat2(dir, "x", "y", 0));
  note("rename", calls.renameat2(dir, "a", "c", 0));
  note("swap with none", calls.renameat2(dir, "c", "x", RENAME_EXCHANGE));
  note("swap", calls.renameat2(dir, "c", "d", RENAME_EXCHANGE));
  note("stat swapped", calls.fstatat(dir, "c", &info));
  all.push_back(S_ISDIR(info.st_mode) ? "directory" : "other");
  note("list", calls.list(dir, names));
  std::sort(names.begin(), names.end());
  for (const auto& name : names) all.push_back(name);
  note("unlink none", calls.unlinkat(dir, "x", 0));
  note("unlink", calls.unlinkat(dir, "d", 0));
  note("lock", calls.try_lock(dir));
  const int other = note("open root again", calls.openat(AT_FDCWD, root.c_str(), O_RDONLY | O_DIRECTORY, 0));
  note("lock again", calls.try_lock(other));
  for (const int descriptor : {other, d, dir}) note("close", calls.close(descriptor));
  return all;
}

bool exists(FaultDisk& disk, const std::string& path) { return Fs(disk).exists(path); }

}  // namespace

TEST_CASE("The disk in memory answers as the kernel does", "[faults][fault_disk]") {
  test::TempDir dir;
  FaultDisk disk;
  REQUIRE(Fs(disk).create_directories("/run").ok());
  CHECK(answers(disk, "/run") == answers(SystemCalls::kernel(), dir.path()));
}

TEST_CASE("A power loss loses unflushed data and nothing else", "[faults][fault_disk]") {
  FaultDisk disk;
  const Fs fs(disk);
  {
    const Directory run = fs.create_directories("/run").value();
    auto flushed = run.create_file("flushed").value();
    REQUIRE(flushed.append("data").ok());
    REQUIRE(flushed.sync().ok());
    auto empty = run.create_file("empty").value();
    REQUIRE(empty.append("data").ok());
    REQUIRE(run.sync().ok());
    auto nameless = run.create_file("nameless").value();
    REQUIRE(nameless.append("data").ok());
    REQUIRE(nameless.sync().ok());
  }
  disk.restart(PowerLoss::kAll);
  CHECK(fs.read_file("/run/flushed", 100).value() == "data");
  CHECK(fs.read_file("/run/empty", 100).value().empty());
  CHECK_FALSE(exists(disk, "/run/nameless"));
}

TEST_CASE("Data of a failed flush never reaches the disk, even if the next flush succeeds", "[faults][fault_disk]") {
  FaultDisk disk;
  const Fs fs(disk);
  {
    const Directory run = fs.create_directories("/run").value();
    auto file = run.create_file("f").value();
    REQUIRE(run.sync().ok());
    REQUIRE(file.append("data").ok());
    disk.arm({.kind = Fault::kError, .at = 0, .error = EIO});
    CHECK(exit_code(file.sync()) == ExitCode::kStorage);
    CHECK(disk.struck() == "fsync");
    CHECK_FALSE(file.sync().ok());  // our file stays failed
  }
  CHECK(fs.read_file("/run/f", 100).value() == "data");  // the page cache still has it
  disk.restart(PowerLoss::kAll);
  CHECK(fs.read_file("/run/f", 100).value().empty());
}
