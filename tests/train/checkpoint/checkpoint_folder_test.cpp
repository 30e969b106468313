// The folder of checkpoints: which are kept, replaced or removed, who may write there, and what --resume accepts.
#include <filesystem>
#include <thread>

#include "core/files/system_calls.h"
#include "test_util.h"
#include "train/checkpoint/checkpoint_run.h"
#include "trainkit/train/checkpoint.h"

using namespace trainkit;
using namespace trainkit::test;
namespace stdfs = std::filesystem;

TEST_CASE("Only real folders with valid names are checkpoints", "[train][checkpoint]") {
  const Run run;
  stdfs::create_directory_symlink(run.path(10), run.folder() + "/step-00000040");
  write(run.folder() + "/step-00000050", "a file");
  for (const char* name : {"step-60", "step-000000070", "step-0000008x", "Step-00000090", "step-00000010.bak"}) {
    stdfs::create_directory(run.folder() + "/" + name);
  }
  CheckpointStore store = run.open(1);
  CHECK(store.steps().value() == std::vector<int64_t>{10, 20, 30});
  CHECK(exit_code(store.load(40).status()) == ExitCode::kWeights);
  CHECK(absl::IsNotFound(store.load(60).status()));
  // Retention does not delete other entries and does not follow links.
  REQUIRE(store.save(31, contents_of(31)) == absl::OkStatus());
  CHECK(store.retention_status() == absl::OkStatus());
  CHECK(store.steps().value() == std::vector<int64_t>{31});
  for (const char* name : {"step-00000040", "step-00000050", "step-60", "step-000000070", "step-0000008x",
                           "Step-00000090", "step-00000010.bak"}) {
    CAPTURE(name);
    CHECK(stdfs::exists(stdfs::symlink_status(run.folder() + "/" + name)));
  }
  // A save fails if a link or a file has its name, and leaves both unchanged.
  for (const int64_t step : {40, 50}) CHECK(exit_code(store.save(step, contents_of(step))) == ExitCode::kStorage);
  CHECK(store.latest().value() == 31);
  CHECK(read(run.folder() + "/step-00000050") == "a file");
}

TEST_CASE("keep_last keeps the newest checkpoints, and after a rollback first drops the later ones",
          "[train][checkpoint]") {
  test::TempDir dir;
  auto store = CheckpointStore::open(dir / "run", {.keep_last = 2}).value();
  for (const int64_t step : {10, 20, 30}) REQUIRE(store.save(step, contents_of(step)).ok());
  CHECK(store.steps().value() == std::vector<int64_t>{20, 30});
  REQUIRE(store.save(5, contents_of(5)).ok());
  CHECK(store.steps().value() == std::vector<int64_t>{5, 30});
  CHECK(store.latest().value() == 5);
  REQUIRE(store.save(6, contents_of(6)).ok());
  CHECK(store.steps().value() == std::vector<int64_t>{5, 6});
  CHECK(store.retention_status() == absl::OkStatus());
}

TEST_CASE("Milestones are kept beyond keep_last, except those dropped by a rollback", "[train][checkpoint]") {
  test::TempDir dir;
  auto store = CheckpointStore::open(dir / "run", {.keep_last = 2, .keep_every = 20}).value();
  const auto steps_after = [&](int64_t step) {
    REQUIRE(store.save(step, contents_of(step)).ok());
    REQUIRE(store.retention_status().ok());
    return store.steps().value();
  };
  steps_after(10);
  CHECK(steps_after(20) == std::vector<int64_t>{10, 20});
  CHECK(steps_after(30) == std::vector<int64_t>{10, 20, 30});
  CHECK(steps_after(40) == std::vector<int64_t>{20, 30, 40});
  steps_after(50);
  CHECK(steps_after(60) == std::vector<int64_t>{20, 40, 50, 60});
  // After a rollback to 20 the later checkpoints are dropped first, milestone or not.
  CHECK(steps_after(25) == std::vector<int64_t>{20, 25, 60});
  CHECK(steps_after(30) == std::vector<int64_t>{20, 25, 30});
  CHECK(exit_code(CheckpointStore::open(dir / "other", {.keep_every = -1}).status()) == ExitCode::kUsage);
}

TEST_CASE("keep_last 0 keeps all checkpoints; a negative value is an error with exit code 2", "[train][checkpoint]") {
  test::TempDir dir;
  {
    auto store = CheckpointStore::open(dir / "run", {.keep_last = 0}).value();
    for (int64_t step = 1; step <= 8; ++step) REQUIRE(store.save(step, contents_of(step)).ok());
    CHECK(store.steps()->size() == 8);
  }
  CHECK(exit_code(CheckpointStore::open(dir / "run", {.keep_last = -1}).status()) == ExitCode::kUsage);
}

TEST_CASE("Saving a step again replaces its checkpoint", "[train][checkpoint]") {
  const Run run;
  auto store = run.open();
  REQUIRE(store.save(30, contents_of(99)) == absl::OkStatus());
  CHECK(get_state<int64_t>(store.load(30)->state, "step").value() == 99);
  REQUIRE(store.save(10, contents_of(98)) == absl::OkStatus());
  CHECK(get_state<int64_t>(store.load(10)->state, "step").value() == 98);
  CHECK(store.latest().value() == 10);
  CHECK(store.steps().value() == std::vector<int64_t>{10, 20, 30});
}

TEST_CASE("A thousand leftovers of killed saves are ignored and removed", "[train][checkpoint]") {
  const Run run;
  for (int i = 0; i < 1000; ++i) {
    const std::string left = run.folder() + "/.tmp-step-00000031-" + std::to_string(i);
    stdfs::create_directory(left);
    if (i % 100 == 0) write(left + "/model.safetensors", "half");
  }
  CHECK(resolve_checkpoint("latest", run.output())->step == 30);
  const CheckpointStore store = run.open();
  CHECK(store.steps().value() == std::vector<int64_t>{10, 20, 30});
  CHECK(std::distance(stdfs::directory_iterator(run.folder()), stdfs::directory_iterator()) == 4);
}

TEST_CASE("A checkpoint with a file of the user is never deleted", "[train][checkpoint]") {
  const Run run;
  auto store = run.open(/*keep_last=*/2);
  write(run.folder() + "/step-00000010/notes.txt", "mine");
  stdfs::create_directory(run.folder() + "/.tmp-step-00000031-0");
  write(run.folder() + "/.tmp-step-00000031-0/notes.txt", "mine");
  for (const int64_t step : {40, 50, 60}) REQUIRE(store.save(step, contents_of(step)).ok());
  CHECK(store.steps().value() == std::vector<int64_t>{10, 50, 60});
  CHECK(store.retention_status().ok());
  CHECK(stdfs::exists(run.folder() + "/step-00000010/notes.txt"));
  CHECK(stdfs::exists(run.folder() + "/.tmp-step-00000031-0/notes.txt"));
}

TEST_CASE("A second writer in the same folder is refused with exit code 2; a reader is not", "[train][checkpoint]") {
  const Run run;
  const CheckpointStore store = run.open();
  const absl::Status second = CheckpointStore::open(run.output()).status();
  CHECK(exit_code(second) == ExitCode::kUsage);
  CHECK(error_line(second).find("another run is writing checkpoints there") != std::string::npos);
  CHECK(load_checkpoint({.folder = run.folder(), .step = 20}).ok());
}

TEST_CASE("A checkpoint folder that is a link, a file or world-writable is refused", "[train][checkpoint]") {
  test::TempDir dir;
  stdfs::create_directories(dir / "victim");
  for (const char* name : {"a", "b", "c"}) stdfs::create_directory(dir / name);
  stdfs::create_directory_symlink(dir / "victim", dir / "a/checkpoints");
  write(dir / "b/checkpoints", "x");
  stdfs::create_directory(dir / "c/checkpoints");
  stdfs::permissions(dir / "c/checkpoints", stdfs::perms::others_write, stdfs::perm_options::add);
  for (const char* name : {"a", "b", "c"}) {
    CAPTURE(name);
    CHECK(exit_code(CheckpointStore::open(dir / name).status()) == ExitCode::kStorage);
  }
  CHECK(stdfs::is_empty(dir / "victim"));
  write(dir / "file", "x");
  CHECK(exit_code(CheckpointStore::open(dir / "file").status()) == ExitCode::kStorage);
  CHECK(exit_code(CheckpointStore::open(dir / std::string(300, 'n')).status()) == ExitCode::kStorage);
}

TEST_CASE("Deleting the run folder during a run is an error, not a crash", "[train][checkpoint]") {
  const Run run;
  auto store = run.open();
  stdfs::remove_all(run.output());
  const absl::Status status = store.save(40, contents_of(40));
  CHECK(exit_code(status) == ExitCode::kStorage);
  CHECK(exit_code(store.load(30).status()) == ExitCode::kWeights);
  CHECK(absl::IsNotFound(store.latest().status()));
}

TEST_CASE("Deleting a checkpoint while it is loaded gives an error or a complete checkpoint", "[train][checkpoint]") {
  int whole = 0, failed = 0;
  for (int i = 0; i < 20; ++i) {
    const Run run;
    const CheckpointStore store = run.open();
    std::thread deleter([&] { stdfs::remove_all(run.path(30)); });
    const auto loaded = store.load(30);
    deleter.join();
    ++(loaded.ok() ? whole : failed);
    if (!loaded.ok()) CHECK(exit_code(loaded.status()) == ExitCode::kWeights);
    if (loaded.ok()) CHECK(get_state<int64_t>(loaded->state, "step").value() == 30);
  }
  CHECK(whole + failed == 20);
}

TEST_CASE("A folder that may not be read is not reported as one without a checkpoint", "[train][checkpoint]") {
  struct Forbidden final : SystemCalls {
    int openat(int, const char*, int, mode_t) override { return -EACCES; }
  } calls;
  const Run run;
  for (const std::string& spec : {std::string("latest"), run.output(), run.path(20), run.folder()}) {
    const absl::Status status = resolve_checkpoint(spec, run.output(), Fs(calls)).status();
    INFO(spec << ": " << error_line(status));
    CHECK(exit_code(status) == ExitCode::kWeights);
    CHECK_THAT(error_line(status), Catch::Contains("ckpt.file") && Catch::Contains("Permission denied"));
  }
}

TEST_CASE("A checkpoint that is not found names --resume only where it was given", "[train][checkpoint]") {
  test::TempDir dir;
  const absl::Status status = resolve_checkpoint("latest", dir / "run").status();
  CHECK_THAT(error_line(status), Catch::Contains("no checkpoint found") && !Catch::Contains("--resume"));
}

TEST_CASE("--resume accepts latest, a run, a folder, a path or a name", "[train][checkpoint]") {
  const Run run;
  const auto found = [&](const std::string& spec, const std::string& output) {
    const auto path = resolve_checkpoint(spec, output);
    return path.ok() ? path->path() : error_line(path.status());
  };
  const std::string other = run.dir() / "other";
  CHECK(found("latest", run.output()) == run.path(30));
  CHECK(found(run.output(), other) == run.path(30));
  CHECK(found(run.output() + "/", other).ends_with("step-00000030"));
  CHECK(found(run.folder(), other) == run.path(30));
  CHECK(found(run.folder() + "/latest", other) == run.path(30));
  CHECK(found(run.path(20), other) == run.path(20));
  CHECK(found(run.path(20) + "/", other) == run.path(20));
  CHECK(found("step-00000010", run.output()) == run.path(10));
  for (const std::string& spec : {run.output(), run.folder() + "/", run.path(20)}) {
    CHECK(resolve_checkpoint(spec, other)->run_folder() == run.output());
  }
  write(run.folder() + "/latest", "step-00000020\n");
  CHECK(found("latest", run.output()) == run.path(20));
  CHECK(load_checkpoint(resolve_checkpoint("latest", run.output()).value()).ok());

  for (const std::string& spec :
       {std::string("latest"), std::string("step-00000040"), run.path(40), run.dir().path().string(),
        run.dir() / "none", run.path(20, "state.json"), std::string()}) {
    CAPTURE(spec);
    const absl::Status status = resolve_checkpoint(spec, other).status();
    CHECK(absl::IsNotFound(status));
    CHECK(exit_code(status) == ExitCode::kWeights);
    CHECK(error_of(status)->expected == "a run's folder, its checkpoints/, or one step-...");
  }
}

TEST_CASE("Resuming from a file of PyTorch names --init_from", "[train][checkpoint]") {
  const TempDir dir;
  write(dir / "checkpoint-latest.pt", "PK");
  for (const std::string& file : {dir / "checkpoint-latest.pt", dir / "missing.pth"}) {
    const absl::Status status = resolve_checkpoint(file, dir / "run").status();
    CHECK(exit_code(status) == ExitCode::kWeights);
    CHECK_THAT(error_text(status), Catch::Contains("not a checkpoint of this library"));
    CHECK_THAT(error_text(status), Catch::Contains("hint: --init_from " + file + " "));
  }
}
