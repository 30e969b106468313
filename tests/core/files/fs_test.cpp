#include "trainkit/core/fs.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "test_util.h"
#include "trainkit/core/status.h"

using namespace trainkit;
namespace stdfs = std::filesystem;

namespace {

const Fs& fs() { return Fs::posix(); }

void write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

std::string read(const std::string& path) { return fs().read_file(path, 1 << 20).value_or("<unreadable>"); }

}  // namespace

TEST_CASE("A file is created once, written in pieces and read back", "[core][fs]") {
  test::TempDir dir;
  const Directory folder = fs().open_directory(dir.path()).value();
  auto file = folder.create_file("f").value();
  REQUIRE(file.append("hello ").ok());
  REQUIRE(file.append("world").ok());
  CHECK(file.size_bytes() == 11);
  CHECK(file.digest().hex() == Digest::of("hello world"));
  REQUIRE(file.sync().ok());
  REQUIRE(file.close().ok());
  CHECK(folder.read_file("f", 11).value() == "hello world");
  const auto again = folder.create_file("f").status();
  CHECK(absl::IsAlreadyExists(again));
  CHECK(exit_code(again) == ExitCode::kStorage);
  CHECK(error_of(again)->where == (dir / "f"));
}

TEST_CASE("Ranges of an existing file are written in place", "[core][fs]") {
  test::TempDir dir;
  const Directory folder = fs().open_directory(dir.path()).value();
  write(dir / "f", "0123456789");
  auto file = folder.open_for_writing("f").value();
  REQUIRE(file.write_at(2, "ab", 2).ok());
  REQUIRE(file.write_at(8, "xyz", 3).ok());  // past the end
  REQUIRE(file.write_at(0, "", 0).ok());
  REQUIRE(file.sync().ok());
  REQUIRE(file.close().ok());
  CHECK(read(dir / "f") == "01ab4567xyz");
  CHECK(absl::IsNotFound(folder.open_for_writing("g").status()));
  auto made = folder.create_file("h").value();
  REQUIRE(made.append("head").ok());
  REQUIRE(made.write_at(7, "t", 1).ok());
  CHECK(made.size_bytes() == 4);
  CHECK(made.digest().hex() == Digest::of("head"));
  CHECK(read(dir / "h") == std::string("head\0\0\0t", 8));
}

TEST_CASE("Only a regular file without links is opened for writing", "[core][fs]") {
  test::TempDir dir, outside;
  write(outside / "secret", "secret");
  stdfs::create_symlink(outside / "secret", dir / "link");
  stdfs::create_hard_link(outside / "secret", dir / "hard_link");
  stdfs::create_directory(dir / "folder");
  REQUIRE(mkfifo((dir / "pipe").c_str(), 0600) == 0);
  const Directory folder = fs().open_directory(dir.path()).value();
  for (const char* name : {"link", "hard_link"}) {
    CHECK(absl::IsFailedPrecondition(folder.open_for_writing(name).status()));
  }
  for (const char* name : {"folder", "pipe", "..", "folder/x"}) CHECK_FALSE(folder.open_for_writing(name).ok());
  CHECK(read(outside / "secret") == "secret");
}

TEST_CASE("New files and folders follow the umask, and are never writable by every user", "[core][fs]") {
  struct Case {
    mode_t mask, file, folder;
  };
  for (const Case& each : std::vector<Case>{{022, 0644, 0755}, {002, 0664, 0775}, {077, 0600, 0700}, {0, 0664, 0775}}) {
    test::TempDir dir;
    const mode_t before = umask(each.mask);
    const auto folder = fs().create_directories(dir / "a/b");
    const bool made = folder.ok() && folder->create_file("f").ok() && write_file_atomically(*folder, "g", "text").ok();
    umask(before);
    REQUIRE(made);
    const auto mode_of = [](const std::string& path) {
      struct stat info {};
      REQUIRE(stat(path.c_str(), &info) == 0);
      return info.st_mode & 0777;
    };
    CAPTURE(each.mask);
    for (const char* name : {"a/b/f", "a/b/g"}) CHECK(mode_of(dir / name) == each.file);
    for (const char* name : {"a", "a/b"}) CHECK(mode_of(dir / name) == each.folder);
  }
}

TEST_CASE("A name inside a directory must be a single path component", "[core][fs]") {
  test::TempDir dir;
  const Directory folder = fs().open_directory(dir.path()).value();
  for (const std::string& name : {std::string(), std::string("."), std::string(".."), std::string("a/b"),
                                  std::string("/etc"), std::string("../x"), std::string("a\0b", 3)}) {
    CAPTURE(name);
    CHECK(absl::IsInvalidArgument(folder.create_file(name).status()));
    CHECK(absl::IsInvalidArgument(folder.open_file(name).status()));
    CHECK(absl::IsInvalidArgument(folder.create_directory(name)));
    CHECK(absl::IsInvalidArgument(folder.open_directory(name).status()));
    CHECK(absl::IsInvalidArgument(folder.rename("x", name)));
    CHECK(absl::IsInvalidArgument(folder.remove_file(name)));
    CHECK(absl::IsInvalidArgument(folder.remove_tree(name)));
  }
}

TEST_CASE("Links inside a directory are not followed", "[core][fs]") {
  test::TempDir dir, outside;
  write(outside / "secret", "secret");
  stdfs::create_directory(outside / "folder");
  stdfs::create_symlink(outside / "secret", dir / "file_link");
  stdfs::create_symlink(outside.path(), dir / "folder_link");
  stdfs::create_symlink(dir / "loop", dir / "loop");
  const Directory folder = fs().open_directory(dir.path()).value();
  CHECK(absl::IsFailedPrecondition(folder.open_file("file_link").status()));
  CHECK(absl::IsAlreadyExists(folder.create_file("file_link").status()));
  CHECK_FALSE(folder.open_directory("folder_link").ok());
  CHECK(folder.type_of("folder_link").value() == EntryType::kLink);
  CHECK(exit_code(fs().open_file(dir / "loop").status()) == ExitCode::kStorage);
  REQUIRE(folder.remove_tree("folder_link").ok());
  REQUIRE(folder.remove_tree("file_link").ok());
  CHECK(read(outside / "secret") == "secret");
  CHECK(stdfs::exists(outside / "folder"));
}

TEST_CASE("remove_tree removes links but not their targets", "[core][fs]") {
  test::TempDir dir, outside;
  write(outside / "kept", "kept");
  stdfs::create_directories(dir / "tree/a/b");
  write(dir / "tree/a/b/f", "x");
  stdfs::create_symlink(outside.path(), dir / "tree/a/link");
  const Directory folder = fs().open_directory(dir.path()).value();
  CHECK(folder.remove_tree("tree").ok());
  CHECK(folder.list().value().empty());
  CHECK(read(outside / "kept") == "kept");
  CHECK(folder.remove_tree("tree").ok());  // removing a missing tree is no error
}

TEST_CASE("A tree nested too deeply is an error, not a stack overflow", "[core][fs]") {
  test::TempDir dir;
  std::string path = dir / "deep";
  for (int i = 0; i < 100; ++i) path += "/d";
  stdfs::create_directories(path);
  CHECK(exit_code(fs().open_directory(dir.path())->remove_tree("deep")) == ExitCode::kStorage);
}

TEST_CASE("Only regular files are opened, and opening a pipe does not block", "[core][fs]") {
  test::TempDir dir;
  REQUIRE(mkfifo((dir / "pipe").c_str(), 0600) == 0);
  CHECK(absl::IsFailedPrecondition(fs().open_file(dir / "pipe").status()));
  CHECK(absl::IsFailedPrecondition(fs().open_directory(dir.path())->open_file("pipe").status()));
  CHECK_FALSE(fs().open_file(dir.path()).ok());
  CHECK(absl::IsNotFound(fs().open_file(dir / "none").status()));
  CHECK(absl::IsNotFound(fs().open_directory(dir / "none").status()));
}

TEST_CASE("Reading stops at the size limit, and a file that shrinks meanwhile is an error", "[core][fs]") {
  test::TempDir dir;
  write(dir / "f", "0123456789");
  CHECK(absl::IsOutOfRange(fs().read_file(dir / "f", 9).status()));
  const auto file = fs().open_file(dir / "f").value();
  stdfs::resize_file(dir / "f", 4);
  char bytes[10];
  const absl::Status status = file.read_at(0, bytes, 10);
  CHECK(absl::IsDataLoss(status));
  CHECK(error_of(status)->where == (dir / "f"));
  CHECK(absl::IsDataLoss(digest_of(file).status()));
}

TEST_CASE("An atomic write either replaces the whole file or leaves it unchanged", "[core][fs]") {
  test::TempDir dir;
  REQUIRE(write_file_atomically(fs(), dir / "f", "old").ok());
  REQUIRE(write_file_atomically(fs(), dir / "f", "new").ok());
  CHECK(read(dir / "f") == "new");
  const Directory folder = fs().open_directory(dir.path()).value();
  const absl::Status failed = write_file_atomically(folder, "f", [](WritableFile& file) {
    TRAINKIT_RETURN_IF_ERROR(file.append("half"));
    return absl::CancelledError("stopped");
  });
  CHECK(absl::IsCancelled(failed));
  CHECK(read(dir / "f") == "new");
  CHECK(folder.list().value() == std::vector<std::string>{"f"});
  CHECK(absl::IsNotFound(write_file_atomically(fs(), dir / "none/f", "x")));
}

TEST_CASE("An atomic write to a link replaces the link, not its target", "[core][fs]") {
  test::TempDir dir, outside;
  write(outside / "target", "target");
  stdfs::create_symlink(outside / "target", dir / "f");
  REQUIRE(write_file_atomically(fs(), dir / "f", "new").ok());
  CHECK(read(outside / "target") == "target");
  CHECK(read(dir / "f") == "new");
}

TEST_CASE("An atomic write replaces no pipe and no device, also through a link", "[core][fs]") {
  test::TempDir dir;
  REQUIRE(mkfifo((dir / "pipe").c_str(), 0600) == 0);
  stdfs::create_symlink("/dev/null", dir / "link");
  for (const char* name : {"pipe", "link"}) {
    const absl::Status status = write_file_atomically(fs(), dir / name, "new");
    CHECK(status.code() == absl::StatusCode::kFailedPrecondition);
    CHECK_THAT(std::string(status.message()), Catch::Contains("is not a regular file"));
    CHECK(stdfs::symlink_status(dir / name).type() != stdfs::file_type::regular);
  }
}

TEST_CASE("Only one process at a time can lock a directory", "[core][fs]") {
  test::TempDir dir;
  {
    const Directory first = fs().open_directory(dir.path()).value();
    REQUIRE(first.try_lock().ok());
    const Directory second = fs().open_directory(dir.path()).value();
    CHECK(absl::IsUnavailable(second.try_lock()));
  }
  CHECK(fs().open_directory(dir.path())->try_lock().ok());
}

TEST_CASE("Two directory entries are swapped atomically", "[core][fs]") {
  test::TempDir dir;
  write(dir / "a", "A");
  write(dir / "b", "B");
  const Directory folder = fs().open_directory(dir.path()).value();
  REQUIRE(folder.exchange("a", "b") == absl::OkStatus());
  CHECK(read(dir / "a") == "B");
  CHECK(read(dir / "b") == "A");
  CHECK(absl::IsNotFound(folder.exchange("a", "none")));
}

TEST_CASE("Missing folders are created; a file in their place is an error", "[core][fs]") {
  test::TempDir dir;
  CHECK(fs().create_directories(dir / "a/b/c")->path() == (dir / "a/b/c"));
  CHECK(fs().create_directories(dir / "a/b/c").ok());
  CHECK(fs().create_directories(dir / "d/").ok());
  write(dir / "file", "x");
  CHECK(exit_code(fs().create_directories(dir / "file/x").status()) == ExitCode::kStorage);
  CHECK(exit_code(fs().create_directories("").status()) == ExitCode::kStorage);
  const std::string long_name(300, 'x');
  CHECK(exit_code(fs().create_directories(dir / long_name).status()) == ExitCode::kStorage);
}

TEST_CASE("A world-writable directory is distinguished from a private one", "[core][fs]") {
  test::TempDir dir;
  const Directory folder = fs().open_directory(dir.path()).value();
  CHECK_FALSE(folder.writable_by_others().value());
  stdfs::permissions(dir.path(), stdfs::perms::others_write, stdfs::perm_options::add);
  CHECK(folder.writable_by_others().value());
  stdfs::permissions(dir.path(), stdfs::perms::sticky_bit, stdfs::perm_options::add);
  CHECK_FALSE(folder.writable_by_others().value());
}

TEST_CASE("Free space is reported in bytes", "[core][fs]") {
  test::TempDir dir;
  CHECK(fs().open_directory(dir.path())->free_bytes().value() > 0);
}

TEST_CASE("Reclassifying a Status keeps everything except exit code and id", "[core][fs]") {
  const absl::Status storage = fs().open_file("/no/such/file").status();
  const absl::Status weights = reclassify(storage, ExitCode::kWeights, "weights.file");
  CHECK(absl::IsNotFound(weights));
  CHECK(exit_code(weights) == ExitCode::kWeights);
  CHECK(error_line(weights) == "error[weights.file] /no/such/file: cannot open: No such file or directory");
  CHECK(reclassify(absl::OkStatus(), ExitCode::kWeights, "x").ok());
}

TEST_CASE("Byte counts are formatted with readable units", "[core][fs]") {
  CHECK(describe_bytes(0) == "0 bytes");
  CHECK(describe_bytes(1023) == "1,023 bytes");
  CHECK(describe_bytes(1'234'567) == "1,234,567 bytes (1.2 MiB)");
  CHECK(describe_bytes(-5000) == "-5,000 bytes");
}

TEST_CASE("A path is split into folder and name", "[core][fs]") {
  using Pair = std::pair<std::string, std::string>;
  CHECK(split_path("a/b/c") == Pair{"a/b", "c"});
  CHECK(split_path("c") == Pair{".", "c"});
  CHECK(split_path("/c") == Pair{"/", "c"});
  CHECK(split_path("a//b/") == Pair{"a", "b"});
}

TEST_CASE("A temporary folder is removed with its contents, unless it is kept", "[core][fs]") {
  test::TempDir dir;
  std::string inside, kept;
  {
    const auto folder = TemporaryFolder::create().value();
    TemporaryFolder within = TemporaryFolder::create(folder.path()).value(), other = std::move(within);
    write(other.path() + "/f", "x");
    inside = folder.path();
    auto left = TemporaryFolder::create(dir.path()).value();
    kept = left.path();
    left.keep();
    CHECK(read(other.path() + "/f") == "x");
  }
  CHECK_FALSE(stdfs::exists(inside));
  CHECK(stdfs::exists(kept));
  CHECK(absl::IsNotFound(TemporaryFolder::create(dir / "none").status()));
  const std::string before = test::environment("TMPDIR");
  setenv("TMPDIR", (dir / "none").c_str(), 1);
  CHECK(test::id_of(TemporaryFolder::create().status()) == "storage.temporary");
  before.empty() ? unsetenv("TMPDIR") : setenv("TMPDIR", before.c_str(), 1);
}
