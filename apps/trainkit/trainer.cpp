#include "trainkit/trainer.h"

#include <fmt/ranges.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "trainkit/command.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/process.h"

namespace trainkit::tool {
namespace {

namespace fs = std::filesystem;

/// Reports on stderr how long a program has been running, from the first second on.
class Waiting {
 public:
  explicit Waiting(std::string what) : what_(std::move(what)) {}
  ~Waiting() {
    if (is_terminal_ && is_shown_) std::fputs("\r\x1b[K", stderr);
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  /// Call it at least once per second.
  void update() {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - begin_).count();
    if (seconds < 1 || (is_shown_ && !is_terminal_)) return;
    is_shown_ = true;
    std::fputs((is_terminal_ ? fmt::format("\r{}: {} s\x1b[K", what_, seconds) : what_ + " ...\n").c_str(), stderr);
    std::fflush(stderr);
  }

 private:
  using Clock = std::chrono::steady_clock;
  const std::string what_;
  const bool is_terminal_ = isatty(STDERR_FILENO) == 1;
  const Clock::time_point begin_ = Clock::now();
  bool is_shown_ = false;
};

// Runs a program without a shell. stdout goes through a pipe, which is read to its end. stderr goes to a memory file:
// a second pipe that nobody reads would block the program once its buffer is full.
absl::StatusOr<Ended> run_program_and_read(std::vector<std::string> words, const std::string& what) {
  constexpr char kError[] = "tool.app";
  TRAINKIT_ASSIGN_OR_RETURN(Pipe output, make_pipe(kError));
  const trainkit::detail::UniqueDescriptor errors(memfd_create("stderr", MFD_CLOEXEC));
  if (errors.get() < 0) {
    return to_status({.exit_code = ExitCode::kStorage,
                      .id = kError,
                      .problem = std::string("cannot create a file in memory: ") + std::strerror(errno)});
  }
  TRAINKIT_ASSIGN_OR_RETURN(
      const pid_t pid,
      start_process({.words = std::move(words), .output = output.writer.get(), .errors = errors.get(), .id = kError}));
  output.writer.reset();
  Ended ended;
  char buffer[65536];
  Waiting waiting(what);
  for (ssize_t size = 1; size > 0;) {
    pollfd ready{.fd = output.reader.get(), .events = POLLIN, .revents = 0};
    const int events = ::poll(&ready, 1, /*timeout=*/500);
    if (events == 0) waiting.update();
    if (events == 0 || (events < 0 && errno == EINTR)) continue;
    size = ::read(output.reader.get(), buffer, sizeof buffer);
    if (size > 0) ended.output.append(buffer, static_cast<size_t>(size));
  }
  int status = 0;
  waitpid(pid, &status, 0);
  ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : static_cast<int>(ExitCode::kBug);
  const ssize_t size = pread(errors.get(), buffer, sizeof buffer, 0);
  ended.errors.assign(buffer, static_cast<size_t>(std::max<ssize_t>(size, 0)));
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
  return run_program_and_read(words, "running trainkit-" + app);
}

}  // namespace trainkit::tool
