// An output folder that holds an earlier run.
#include "app/earlier_run.h"

#include "config_test_util.h"
#include "trainkit/core/fs.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

void make_checkpoint(const std::string& run) {
  std::filesystem::create_directories(run + "/checkpoints/step-00000040");
  write(run + "/checkpoints/step-00000040/manifest.json", "{}");
  write(run + "/checkpoints/latest", "40\n");
}

}  // namespace

TEST_CASE("A folder that contains a checkpoint is refused without --resume or --overwrite", "[config][earlier_run]") {
  const TempDir folder;
  const std::string run = folder / "run";
  make_checkpoint(run);
  check_error(start_in(run), ExitCode::kUsage, "cli.value");
  check_error(start_in(run, {"--dry_run"}), ExitCode::kUsage, "cli.value");
  CHECK_THAT(error_text(start_in(run)), Catch::Contains("--output_dir: contains checkpoints of an earlier run"));
  const std::string file = write(folder / "run.yaml", "output_dir: run\n");
  Program program;
  check_error(program.start({"--config", file}), ExitCode::kConfig, "config.value");
  CHECK(start_in(run, {"--resume", "latest"}).ok());
  CHECK(std::filesystem::exists(run + "/checkpoints/step-00000040/manifest.json"));
}

TEST_CASE("A dry run tries to write to the output folder and leaves nothing", "[config][earlier_run]") {
  const TempDir folder;
  CHECK(start_in(folder / "a/b/c", {"--dry_run"}).ok());
  CHECK(std::filesystem::is_empty(folder.path()));
  for (const char* path : {"/proc/none", "/dev/null/run"}) {
    check_error(start_in(path, {"--dry_run"}), ExitCode::kStorage, "storage.output_dir");
  }
}

TEST_CASE("A folder without a checkpoint is used unchanged", "[config][earlier_run]") {
  const TempDir folder;
  std::filesystem::create_directories(folder / "run/checkpoints/step-00000040.tmp");
  write(folder / "run/metrics.jsonl", "{}\n");
  write(folder / "run/checkpoints/notes.txt", "mine");
  CHECK(start_in(folder / "run").ok());
  CHECK(std::filesystem::exists(folder / "run/metrics.jsonl"));
  CHECK(start_in(folder / "new/deep").ok());
  CHECK(std::filesystem::is_directory(folder / "new/deep"));
}

TEST_CASE("--overwrite removes the earlier run and nothing else", "[config][earlier_run]") {
  const TempDir folder;
  const std::string run = folder / "run", outside = folder / "outside";
  make_checkpoint(run);
  std::filesystem::create_directories(run + "/tensorboard");
  std::filesystem::create_directories(run + "/results/adapter");
  std::filesystem::create_directories(outside);
  write(outside + "/keep.txt", "mine");
  for (const char* name : {"config.yaml", "metrics.jsonl", "tensorboard/events", "bad_samples.csv", "summary.json",
                           "error.json", "run.json", "report.html", "loss.svg", "results/scores.json",
                           "results/adapter/weights", "notes.txt", "checkpoints/best.txt"}) {
    write(run + "/" + name, "x");
  }
  std::filesystem::create_directory_symlink(outside, run + "/checkpoints/step-00000050");
  Program program;
  REQUIRE(program.start({"--output_dir=" + run, "--overwrite"}).ok());
  CHECK(std::filesystem::exists(run + "/results/scores.json"));  // until the new run begins
  {
    const auto earlier = trainkit::detail::EarlierRun::move_away(run);  // the new run does not begin
    REQUIRE(earlier.ok());
    CHECK(!std::filesystem::exists(run + "/results"));
    write(run + "/config.yaml", "new");
    write(run + "/error.json", "new");
  }
  CHECK(Fs::posix().read_file(run + "/config.yaml", 100).value() == "x");
  CHECK(Fs::posix().read_file(run + "/results/scores.json", 100).value() == "x");
  CHECK(std::filesystem::exists(run + "/checkpoints/step-00000050"));
  auto earlier = trainkit::detail::EarlierRun::move_away(run);
  REQUIRE(earlier->remove().ok());
  std::vector<std::string> left;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(run)) {
    left.push_back(std::filesystem::relative(entry.path(), run).string());
  }
  std::sort(left.begin(), left.end());
  CHECK(left == std::vector<std::string>{"checkpoints", "checkpoints/best.txt", "notes.txt"});
  CHECK(std::filesystem::exists(outside + "/keep.txt"));
}

TEST_CASE("A finished run without checkpoints is kept, a run that failed is not", "[config][earlier_run]") {
  const TempDir folder;
  const std::string run = folder / "run";
  write(run + "/summary.json", R"({"exit_reason": "error", "exit_code": 4})");
  CHECK(start_in(run, {}).ok());
  write(run + "/summary.json", R"({"exit_reason": "max_steps", "exit_code": 0})");
  CHECK_THAT(std::string(start_in(run, {}).message()), Catch::Contains("contains the results of a finished run"));
  CHECK(start_in(run, {"--overwrite"}).ok());
}

TEST_CASE("A dry run writes nothing", "[config][earlier_run]") {
  const TempDir folder;
  make_checkpoint(folder / "old");
  CHECK(start_in(folder / "new", {"--dry_run"}).ok());
  CHECK_FALSE(std::filesystem::exists(folder / "new"));
  Program program;
  CHECK(program.start({"--output_dir=" + (folder / "old"), "--dry_run", "--overwrite"}).ok());
  CHECK(std::filesystem::exists(folder / "old/checkpoints/step-00000040"));
}
