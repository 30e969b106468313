// An output folder that holds an earlier run, or files of the user.
#include <ATen/ATen.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <map>

#include "app/run/run_files.h"
#include "config_test_util.h"
#include "report/report.h"
#include "report/run_file.h"
#include "trainkit/core/fs.h"
#include "trainkit/logging/sinks.h"

using namespace trainkit;
using namespace trainkit::test;
namespace fs = std::filesystem;

namespace {

void make_checkpoint(const std::string& run) {
  fs::create_directories(run + "/checkpoints/step-00000040");
  for (const char* name : {"manifest.json", "model.safetensors"}) {
    write(run + "/checkpoints/step-00000040/" + name, "{}");
  }
  write(run + "/checkpoints/latest", "step-00000040\n");
}

/// A run that has ended, as RunFolder leaves it; `files` are those of RunFolder and of the trainer.
void make_run(const std::string& run, const std::vector<std::string>& files, bool has_ended = true) {
  fs::create_directories(run);
  REQUIRE(trainkit::detail::begin_session(run, {.program = "trainkit-x", .id = std::string(16, 'a')}).ok());
  for (const std::string& name : files) {
    fs::create_directories(fs::path(run + "/" + name).parent_path());
    REQUIRE(write_file_atomically(Fs::posix(), run + "/" + name, "own " + name).ok());
  }
  if (has_ended) REQUIRE(trainkit::detail::end_session(run, {.exit_reason = "max_steps"}, {}).ok());
}

/// Removes the list of files, which runs of earlier versions lack.
void forget_list(const std::string& run) {
  auto json = trainkit::detail::read_json_file(run + "/run.json");
  json.erase("files");
  json.erase("id");
  write(run + "/run.json", json.dump(2));
}

/// The bytes of each file below `folder`.
std::map<std::string, std::string> files_in(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file())
      files[fs::relative(entry.path(), folder).string()] = Fs::posix().read_file(entry.path(), 1 << 20).value();
  }
  return files;
}

std::vector<std::string> names_of(const std::map<std::string, std::string>& files) {
  std::vector<std::string> names;
  for (const auto& [name, text] : files) names.push_back(name);
  return names;
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
  TrainerFlags program;
  check_error(program.start({"--config", file}), ExitCode::kConfig, "config.value");
  CHECK(start_in(run, {"--resume", "latest"}).ok());
  CHECK(fs::exists(run + "/checkpoints/step-00000040/manifest.json"));
  // The checkpoint of another run does not make this folder the run's own.
  make_checkpoint(folder / "other");
  CHECK_THAT(error_text(start_in(run, {"--resume", folder / "other"})), Catch::Contains("contains checkpoints"));
}

TEST_CASE("A dry run tries to write to the output folder and leaves nothing", "[config][earlier_run]") {
  const TempDir folder;
  CHECK(start_in(folder / "a/b/c", {"--dry_run"}).ok());
  CHECK(std::filesystem::is_empty(folder.path()));
  for (const char* path : {"/proc/none", "/dev/null/run"}) {
    check_error(start_in(path, {"--dry_run"}), ExitCode::kStorage, "storage.output_dir");
  }
}

TEST_CASE("Files of other names stay in a folder that a new run uses", "[config][earlier_run]") {
  const TempDir folder;
  fs::create_directories(folder / "run/checkpoints/step-00000040.tmp");
  fs::create_directories(folder / "run/tensorboard");
  for (const char* name : {"notes.txt", "checkpoints/notes.txt", "tensorboard/events.out.tfevents.1.host.7.trainkit"}) {
    write(folder / "run/" + name, "mine");
  }
  const auto files = files_in(folder / "run");
  CHECK(start_in(folder / "run").ok());
  REQUIRE(trainkit::detail::EarlierRun::move_away(folder / "run")->remove().ok());
  CHECK(files_in(folder / "run") == files);
  CHECK(start_in(folder / "new/deep").ok());
  CHECK(fs::is_directory(folder / "new/deep"));
}

TEST_CASE("A new run refuses each file that it would replace, with and without --overwrite", "[config][earlier_run]") {
  const std::vector<std::string> names = {"config.yaml",
                                          "metrics.jsonl",
                                          "run.json",
                                          "summary.json",
                                          "error.json",
                                          "report.html",
                                          "loss.svg",
                                          "best.safetensors",
                                          "best.before.safetensors",
                                          "bad_samples.csv",
                                          "profile.json",
                                          "profile.rank3.json",
                                          "checkpoints/latest",
                                          "wandb/run_id",
                                          "wandb/client.log",
                                          "results/scores.json",
                                          "results/deep/notes.txt",
                                          "tokenizer.json"};
  for (const std::string& name : names) {
    const TempDir folder;
    const std::string run = folder / "run";
    fs::create_directories(fs::path(run + "/" + name).parent_path());
    write(run + "/" + name, "{\"mine\": 1}");
    for (const bool overwrite : {false, true}) {
      TrainerFlags program;
      program.run.overwrite = overwrite;
      program.run.output_dir = run;
      CAPTURE(name, overwrite);
      const absl::Status refused = prepare_output_dir(program.parser, program.run, {"tokenizer.json"});
      check_error(refused, ExitCode::kUsage, "storage.foreign");
      CHECK_THAT(error_line(refused), Catch::Contains("error[storage.foreign] " + run + "/" + name + ": is not known"));
      CHECK(remove_earlier_run(program.run, {"tokenizer.json"}) == refused);
    }
    CHECK(files_in(run) == std::map<std::string, std::string>{{name, "{\"mine\": 1}"}});
    // A link is not followed either.
    fs::rename(run + "/" + name, folder / "target");
    fs::create_symlink(folder / "target", run + "/" + name);
    TrainerFlags program;
    program.run.output_dir = run;
    CHECK(id_of(prepare_output_dir(program.parser, program.run, {"tokenizer.json"})) == "storage.foreign");
  }
}

TEST_CASE("A run's own files are replaced, until somebody changes one or adds another", "[config][earlier_run]") {
  const std::vector<std::string> own = {"config.yaml", "best.safetensors", "results/scores.json", "loss.svg"};
  const auto overwrite = [](const std::string& run) { return start_in(run, {"--overwrite"}); };
  const TempDir folder;
  make_run(folder / "whole", own);
  CHECK(overwrite(folder / "whole").ok());
  CHECK(start_in(folder / "whole").ok());  // it has neither a checkpoint nor a summary
  for (const std::string& name : own) {
    if (name == "best.safetensors") continue;  // changes during a run
    const std::string run = folder / ("changed-" + fs::path(name).filename().string());
    make_run(run, own);
    write(run + "/" + name, "changed");
    CAPTURE(name);
    const absl::Status refused = overwrite(run);
    check_error(refused, ExitCode::kUsage, "storage.foreign");
    CHECK_THAT(error_line(refused), Catch::Contains(run + "/" + name + ": was changed after the run"));
  }
  // A session that was killed has no digests: its files are known by the names in the list.
  make_run(folder / "killed", own, /*has_ended=*/false);
  CHECK(overwrite(folder / "killed").ok());
  for (const char* name : {"results/notes.txt", "summary.json", "profile.json"}) {
    const std::string run = folder / ("added-" + fs::path(name).filename().string());
    make_run(run, own);
    write(run + "/" + name, "added");
    CHECK_THAT(error_line(overwrite(run)), Catch::Contains(run + "/" + name + ": is not known to be a file of a run"));
  }
  make_run(folder / "checkpoint", own);
  make_checkpoint(folder / "checkpoint");
  CHECK(overwrite(folder / "checkpoint").ok());
  write(folder / "checkpoint/checkpoints/step-00000040/notes.txt", "mine");
  CHECK_THAT(error_line(overwrite(folder / "checkpoint")), Catch::Contains("step-00000040: contains notes.txt"));
}

TEST_CASE("A run of an earlier version is known by its names", "[config][earlier_run]") {
  const TempDir folder;
  const std::string run = folder / "run";
  make_run(run, {"config.yaml", "summary.json", "results/report.json", "results/adapter/adapter_config.json"});
  forget_list(run);
  CHECK(start_in(run, {"--overwrite"}).ok());
  write(run + "/results/notes.txt", "mine");
  check_error(start_in(run, {"--overwrite"}), ExitCode::kUsage, "storage.foreign");
  fs::remove(run + "/results/notes.txt");
  // Its config.yaml has no digest, so it may contain changes.
  write(run + "/config.yaml", "lr: 0.5\n");
  const absl::Status refused = start_in(run, {"--overwrite", "--config", run + "/config.yaml"});
  CHECK_THAT(error_line(refused), Catch::Contains("config.yaml: is the file of --config"));
  // The common folder of --repeats had no run.json.
  const std::string all = folder / "all";
  make_run(all + "/repeat-0", {"config.yaml"});
  write(all + "/config.yaml", "x");
  write(all + "/summary.json", "{}");
  CHECK(start_in(all, {"--overwrite"}).ok());
  // A program without RunFolder: a checkpoint and a log.
  make_checkpoint(folder / "loop");
  write(folder / "loop/metrics.jsonl", "{\"step\":1,\"epoch\":0.5,\"split\":\"train\"}\n");
  write(folder / "loop/best.safetensors", "x");
  CHECK(start_in(folder / "loop", {"--overwrite"}).ok());
}

TEST_CASE("A run that still trains is not replaced", "[config][earlier_run]") {
  const TempDir folder;
  const std::string run = folder / "run";
  make_run(run, {}, /*has_ended=*/false);
  auto json = trainkit::detail::read_json_file(run + "/run.json");
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  json["sessions"][0]["pid"] = child;
  write(run + "/run.json", json.dump());
  for (const char* flag : {"--overwrite", "--no-overwrite"}) {
    CHECK_THAT(error_line(start_in(run, {flag})), Catch::Contains("a run in this folder is still training"));
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  CHECK(start_in(run).ok());
}

TEST_CASE("--overwrite removes the earlier run and nothing else", "[config][earlier_run]") {
  const TempDir folder;
  const std::string run = folder / "run";
  make_run(run, {"config.yaml", "metrics.jsonl", "bad_samples.csv", "summary.json", "error.json", "loss.svg",
                 "results/scores.json", "results/adapter/weights"});
  write(run + "/error.json", "{\n  \"exit_code\": 4\n}\n");
  write(run + "/report.html", trainkit::detail::report_begin());
  make_checkpoint(run);
  fs::create_directories(run + "/tensorboard");
  const std::string own_events = "events.out.tfevents.1.host.7.run-aaaaaaaaaaaaaaaa.trainkit";
  const std::string other_events = "events.out.tfevents.1.host.7.run-bbbbbbbbbbbbbbbb.trainkit";
  fs::create_directories(folder / "shared");
  for (const std::string& name : {own_events, other_events}) {
    write(run + "/tensorboard/" + name, "x");
    write(folder / "shared/" + name, "x");
  }
  for (const char* name : {"notes.txt", "checkpoints/best.txt"}) write(run + "/" + name, "mine");
  const auto before = files_in(run);
  TrainerFlags program;
  REQUIRE(program.start({"--output_dir=" + run, "--overwrite"}).ok());
  CHECK(files_in(run) == before);  // until the new run begins
  {
    const auto earlier = trainkit::detail::EarlierRun::move_away(run, {}, folder / "shared");
    REQUIRE(earlier.ok());
    CHECK(!fs::exists(run + "/results"));
    write(run + "/config.yaml", "new");  // the new run does not begin
    write(run + "/error.json", "new");
    write(run + "/tensorboard/events.out.tfevents.2.host.7.run-cccccccccccccccc.trainkit", "new");
  }
  CHECK(files_in(run) == before);
  CHECK(files_in(folder / "shared").size() == 2);
  auto earlier = trainkit::detail::EarlierRun::move_away(run, {}, folder / "shared");
  REQUIRE(earlier->remove().ok());
  CHECK(names_of(files_in(run)) ==
        std::vector<std::string>{"checkpoints/best.txt", "notes.txt", "tensorboard/" + other_events});
  CHECK(names_of(files_in(folder / "shared")) == std::vector<std::string>{other_events});
  CHECK(!fs::exists(run + "/results"));
}

TEST_CASE("A finished run without checkpoints is kept, a run that failed is not", "[config][earlier_run]") {
  const TempDir folder;
  const std::string run = folder / "run";
  make_run(run, {"summary.json"}, /*has_ended=*/false);
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
  CHECK_FALSE(fs::exists(folder / "new"));
  TrainerFlags program;
  CHECK(program.start({"--output_dir=" + (folder / "old"), "--dry_run", "--overwrite"}).ok());
  CHECK(fs::exists(folder / "old/checkpoints/step-00000040"));
}

TEST_CASE("A new run replaces the pictures of the earlier one, and no others", "[config][earlier_run]") {
  const TempDir folder;
  const std::string run = folder / "run";
  fs::create_directories(run);
  REQUIRE(trainkit::detail::begin_session(run, {.program = "trainkit-x", .id = std::string(16, 'a')}).ok());
  {
    MediaLogger media(run + "/media");
    media.image("val/x", 10, at::zeros({3, 2, 2}));
    media.histogram("w", 10, at::zeros({3}));
    REQUIRE(media.flush().ok());
  }
  REQUIRE(trainkit::detail::end_session(run, {.exit_reason = "max_steps"}, {}).ok());
  write(run + "/media/film.mp4", "of the user");
  const trainkit::detail::RunFiles files(run, {});
  CHECK(files.check() == absl::OkStatus());
  const std::set<fs::path> own(files.own().begin(), files.own().end());
  CHECK(own == std::set<fs::path>{"run.json", "media/histograms.jsonl", "media/val%2Fx.step-00000010.png"});
  // A picture that the user has changed or added.
  for (const char* name : {"val%2Fx.step-00000010.png", "mine.step-00000001.png"}) {
    const std::string path = write(run + "/media/" + name, "of the user");
    CHECK(exit_code(trainkit::detail::RunFiles(run, {}).check()) == ExitCode::kUsage);
    fs::remove(path);
  }
  // Without a run, a folder of this name concerns no one.
  fs::create_directories(folder / "data/media");
  write(folder / "data/media/film.mp4", "of the user");
  CHECK(trainkit::detail::RunFiles(folder / "data", {}).check() == absl::OkStatus());
}
