#include "logging/run_log.h"

#include <sys/stat.h>

#include "test_util.h"
#include "trainkit/logging/sinks.h"

using namespace trainkit;

namespace {

size_t files_in(const std::string& folder) {
  std::error_code none;
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder, none), {}));
}

std::vector<int64_t> steps_of(const std::string& dir) {
  std::vector<int64_t> steps;
  const std::vector<LogRecord> records = read_jsonl(dir + "/metrics.jsonl").value();
  for (const LogRecord& record : records) steps.push_back(record.step);
  return steps;
}

void log_steps(const RunLogOptions& options, int64_t first, int64_t last) {
  auto log = open_run_log(options).value();
  for (int64_t step = first; step <= last; ++step) log->log({.step = step, .values = {{"loss", 1}}});
  REQUIRE(log->close().ok());
}

}  // namespace

TEST_CASE("A new run creates its files and a resumed one appends after its checkpoint", "[logging][run_log]") {
  test::TempDir dir;
  const std::string run = dir / "deep/run";
  log_steps({.output_dir = run}, 1, 5);
  CHECK(steps_of(run) == std::vector<int64_t>{1, 2, 3, 4, 5});
  log_steps({.output_dir = run, .resume_step = 3}, 4, 4);
  CHECK(steps_of(run) == std::vector<int64_t>{1, 2, 3, 4});
  CHECK(files_in(run + "/tensorboard") == 2);
  log_steps({.output_dir = run}, 1, 1);
  CHECK(steps_of(run) == std::vector<int64_t>{1});
  CHECK(files_in(run + "/tensorboard") == 1);
}

TEST_CASE("Each sink can be omitted, moved or enabled", "[logging][run_log]") {
  test::TempDir dir;
  std::FILE* screen = std::tmpfile();
  log_steps({.output_dir = dir / "a", .console = screen, .tensorboard_dir = dir / "elsewhere"}, 1, 1);
  CHECK(files_in(dir / "elsewhere") == 1);
  CHECK(files_in(dir / "a") == 1);
  CHECK(std::fseek(screen, 0, SEEK_END) == 0);
  CHECK(std::ftell(screen) > 0);
  std::fclose(screen);
  log_steps({.output_dir = dir / "b", .use_tensorboard = false}, 1, 1);
  CHECK(files_in(dir / "b") == 1);
}

TEST_CASE("A dry run finds what opening the logs would find, and leaves nothing", "[logging][run_log]") {
  test::TempDir dir;
  const auto code = [](const RunLogOptions& options) { return exit_code(try_run_log(options)); };
  std::filesystem::create_directory(dir / "old");
  REQUIRE(mkfifo((dir / "old/metrics.jsonl").c_str(), 0600) == 0);
  CHECK(code({.output_dir = dir / "old"}) == ExitCode::kStorage);
  std::filesystem::remove_all(dir / "old");
  CHECK(code({.output_dir = dir / "a", .tensorboard_dir = "/dev/null"}) == ExitCode::kStorage);
  CHECK(code({.output_dir = dir / "a", .tensorboard_dir = "/dev/null/deep/er"}) == ExitCode::kStorage);
  CHECK(code({.output_dir = dir / "a", .tensorboard_dir = "/proc/none"}) == ExitCode::kStorage);
  CHECK(code({.output_dir = dir / "a", .use_tensorboard = false, .tensorboard_dir = "/dev/null"}) == ExitCode::kOk);
  CHECK(code({.output_dir = dir / "a", .use_wandb = true, .wandb = {.python = "/no/such"}}) == ExitCode::kUsage);
  CHECK(code({.output_dir = dir / "a/b", .tensorboard_dir = dir / "c/d"}) == ExitCode::kOk);
  CHECK(std::filesystem::is_empty(dir.path()));
}

TEST_CASE("A file that cannot be opened is reported before the first step", "[logging][run_log]") {
  test::TempDir dir;
  CHECK(exit_code(open_run_log({.output_dir = "/proc/none"}).status()) == ExitCode::kStorage);
  CHECK(exit_code(open_run_log({.output_dir = dir / "a", .tensorboard_dir = "/dev/null"}).status()) ==
        ExitCode::kStorage);
  CHECK(
      exit_code(open_run_log({.output_dir = dir / "b", .use_wandb = true, .wandb = {.python = "/no/such"}}).status()) ==
      ExitCode::kUsage);
}
