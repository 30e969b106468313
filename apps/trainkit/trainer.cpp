#include "trainkit/trainer.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "trainkit/command.h"
#include "trainkit/core/error.h"

namespace trainkit::tool {
namespace {

namespace fs = std::filesystem;

// Runs a program without a shell. stdout goes through a pipe, which is read to its end. stderr goes to a memory file:
// a second pipe that nobody reads would block the program once its buffer is full.
absl::StatusOr<Ended> run_program_and_read(std::vector<std::string> words) {
  int pipe[2];
  if (pipe2(pipe, O_CLOEXEC) != 0) return absl::InternalError("cannot create a pipe");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, pipe[1], 1);
  const int errors = memfd_create("stderr", MFD_CLOEXEC);
  posix_spawn_file_actions_adddup2(&actions, errors, 2);
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t pid = -1;
  const int failed = posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(pipe[1]);
  Ended ended;
  char buffer[65536];
  for (ssize_t size = 0; failed == 0 && (size = read(pipe[0], buffer, sizeof buffer)) > 0;)
    ended.output.append(buffer, static_cast<size_t>(size));
  close(pipe[0]);
  if (failed == 0) {
    int status = 0;
    waitpid(pid, &status, 0);
    ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : static_cast<int>(ExitCode::kBug);
    const ssize_t size = pread(errors, buffer, sizeof buffer, 0);
    ended.errors.assign(buffer, static_cast<size_t>(std::max<ssize_t>(size, 0)));
  }
  close(errors);
  if (failed != 0) {
    return to_status({.exit_code = ExitCode::kUsage,
                      .id = "tool.app",
                      .where = words[0],
                      .problem = std::string("cannot be started: ") + std::strerror(failed)});
  }
  return ended;
}

/// Names of the trainers in this program's folder, as --app takes them: file names without "trainkit-".
std::vector<std::string> trainer_names() {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(program_folder(), ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("trainkit-")) names.push_back(name.substr(9));
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

absl::StatusOr<Ended> run_trainer(const ConfigParser& parser, const std::string& app,
                                  const std::vector<std::string>& flags) {
  const std::vector<std::string> known = trainer_names();
  if (std::find(known.begin(), known.end(), app) == known.end()) {
    const std::string nearest = nearest_name(app, known);
    return parser.invalid("app", "no such trainer in this program's folder", fmt::format("{}", fmt::join(known, ", ")),
                          nearest.empty() ? "" : "did you mean --app " + nearest + "?");
  }
  std::vector<std::string> words = {program_folder() + "/trainkit-" + app};
  words.insert(words.end(), flags.begin(), flags.end());
  return run_program_and_read(words);
}

}  // namespace trainkit::tool
