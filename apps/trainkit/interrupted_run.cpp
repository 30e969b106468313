#include "trainkit/interrupted_run.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <optional>
#include <thread>

#include "core/cgroup.h"
#include "trainkit/command.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/train/checkpoint.h"

namespace trainkit::tool {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr auto kPoll = std::chrono::milliseconds(2);
/// One interruption in so many comes at any moment after a start, before the run shows that it is alive too.
constexpr int kAnyMomentIn = 8;
/// Moments are drawn from a little more than the training that is left, so that a run does its last step at last.
constexpr double kBeyondTraining = 1.25;
/// What follows the last checkpoint is left in peace more often than not.
constexpr double kBeyondEnd = 3;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// The last line that an error makes, or the last line at all.
std::string last_line(const std::string& text) {
  const size_t error = text.rfind("trainkit: error[");
  const size_t end = text.find_last_not_of('\n');
  if (end == std::string::npos) return "";
  const size_t begin = error != std::string::npos ? error : text.rfind('\n', end) + 1;
  return text.substr(begin, text.find('\n', begin) - begin);
}

/// What a run has written, to see that it lives.
class SignsOfLife {
 public:
  explicit SignsOfLife(std::string output_dir) : output_dir_(std::move(output_dir)) { seen(); }

  std::string latest() const { return detail::read_text(output_dir_ + "/checkpoints/latest"); }

  /// Whether metrics.jsonl has grown, or there is another checkpoint, since the last call. A run that goes on cuts what
  /// it had logged too much first.
  bool seen() {
    std::error_code none;
    const auto size = fs::file_size(output_dir_ + "/metrics.jsonl", none);
    const uintmax_t bytes = none ? 0 : size;
    std::string now = latest();
    const bool alive = bytes > bytes_ || now != latest_;
    bytes_ = bytes;
    latest_ = std::move(now);
    return alive;
  }

 private:
  std::string output_dir_, latest_ = {};
  uintmax_t bytes_ = 0;
};

/// Of the last checkpoint; 0 if there is none.
int64_t saved_step(const std::string& output_dir) {
  const auto latest = resolve_checkpoint("latest", output_dir);
  return latest.ok() ? latest->step : 0;
}

}  // namespace

/// The program, with all that it starts.
class InterruptedRuns::Process {
 public:
  /// Output goes behind what is in `log`.
  static absl::StatusOr<std::unique_ptr<Process>> start(std::vector<std::string> words, const std::string& log);
  explicit Process(pid_t pid, std::string log) : pid_(pid), log_(std::move(log)) {}
  ~Process() {
    kill_all();
    reap();
  }

  /// The way it ended as waitpid says it, once it has.
  std::optional<int> poll() {
    int status = 0;
    if (!ended_ && waitpid(pid_, &status, WNOHANG) == pid_) ended_ = status;
    return ended_;
  }
  bool running() { return !poll(); }
  void signal(int number) {
    if (running()) ::kill(number == SIGKILL ? -pid_ : pid_, number);
  }
  /// Those of its group that outlive it, too.
  void kill_all() { ::kill(-pid_, SIGKILL); }
  /// Waits for what it left behind, too: a launcher's ranks die a moment after it.
  void reap() {
    if (!ended_) {
      int status = 0;
      waitpid(pid_, &status, 0);
      ended_ = status;
    }
    while (waitpid(-1, nullptr, 0) > 0) continue;
  }
  absl::Status failure() const;

 private:
  pid_t pid_;
  std::string log_;
  std::optional<int> ended_ = {};
};

absl::StatusOr<std::unique_ptr<InterruptedRuns::Process>> InterruptedRuns::Process::start(
    std::vector<std::string> words, const std::string& log) {
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t parent = getpid();
  int report[2];
  if (pipe2(report, O_CLOEXEC) != 0) return absl::InternalError("cannot create a pipe");
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  const pid_t pid = fork();
  if (pid == 0) {  // nothing here allocates
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int in = open("/dev/null", O_RDONLY), out = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    const bool ready =
        getppid() == parent && in >= 0 && out >= 0 && dup2(in, 0) >= 0 && dup2(out, 1) >= 0 && dup2(out, 2) >= 0;
    if (ready) {
      for (const int number : {SIGINT, SIGTERM, SIGUSR1, SIGPIPE}) ::signal(number, SIG_DFL);
      execvp(argv[0], argv.data());
    }
    const int error = errno;
    (void)!write(report[1], &error, sizeof error);
    _exit(127);
  }
  close(report[1]);
  int error = pid > 0 ? 0 : errno;
  if (pid > 0 && ::read(report[0], &error, sizeof error) == sizeof error) waitpid(pid, nullptr, 0);
  close(report[0]);
  if (error != 0) {
    return to_status({.exit_code = ExitCode::kUsage,
                      .id = "tool.start",
                      .where = words[0],
                      .problem = std::string("cannot be started: ") + std::strerror(error)});
  }
  setpgid(pid, pid);
  return std::make_unique<Process>(pid, log);
}

/// How it ended, as an error.
absl::Status InterruptedRuns::Process::failure() const {
  const int status = ended_.value_or(0);
  const bool exited = WIFEXITED(status);
  const int code = exited ? WEXITSTATUS(status) : static_cast<int>(ExitCode::kBug);
  const bool ours = code > 0 && code <= static_cast<int>(ExitCode::kDevice);
  return to_status({.exit_code = ours ? static_cast<ExitCode>(code) : ExitCode::kBug,
                    .id = "resume.run",
                    .where = log_,
                    .problem = exited ? fmt::format("the program ended with exit code {}", code)
                                      : fmt::format("signal {} ended the program", WTERMSIG(status)),
                    .got = last_line(detail::read_text(log_))});
}

std::vector<std::string> InterruptedRuns::command(const std::string& output_dir, bool resume) {
  std::vector<std::string> words = options_.program;
  // A program of ours is named without a path.
  const std::string beside = program_folder() + "/" + words[0];
  if (words[0].find('/') == std::string::npos && fs::exists(beside)) words[0] = beside;
  words.insert(words.end(), {"--output_dir", output_dir});
  if (resume) words.insert(words.end(), {"--resume", "latest"});
  return words;
}

absl::StatusOr<RunTimes> InterruptedRuns::undisturbed(const std::string& output_dir) {
  SignsOfLife life(output_dir);
  TRAINKIT_ASSIGN_OR_RETURN(auto process, Process::start(command(output_dir, /*resume=*/false), output_dir + ".log"));
  const Clock::time_point begin = Clock::now();
  RunTimes times;
  std::string last;
  const auto look = [&] {
    if (times.first_sign == 0 && life.seen()) times.first_sign = seconds_since(begin);
    std::string latest = life.latest();
    if (latest == last) return;
    times.last_checkpoint = seconds_since(begin);
    if (last.empty()) times.first_checkpoint = times.last_checkpoint;
    last = std::move(latest);
  };
  while (process->running()) {
    look();
    std::this_thread::sleep_for(kPoll);
  }
  look();
  times.end = seconds_since(begin);
  process->reap();
  if (*process->poll() != 0) return process->failure();
  times.steps = saved_step(output_dir);
  if (times.last_checkpoint == times.first_checkpoint) {
    return to_status({.exit_code = ExitCode::kUsage,
                      .id = "resume.checkpoints",
                      .where = output_dir,
                      .problem = "the run saved no checkpoint before its end: there is no moment to interrupt it at",
                      .hint = "a smaller --save_every, or a longer run"});
  }
  return times;
}

void InterruptedRuns::count_interruption(const std::string& output_dir, bool alive, bool trained) {
  if (trained) {
    ++counts_.after_training;
    return;
  }
  ++counts_.interruptions;
  counts_.while_starting += !alive;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(output_dir + "/checkpoints", none)) {
    if (!entry.path().filename().string().starts_with(".tmp-")) continue;
    ++counts_.while_saving;
    break;
  }
}

absl::Status InterruptedRuns::disturbed(const std::string& output_dir, const RunTimes& times, int64_t most) {
  const bool ends = options_.signal != SIGUSR1;
  const double patience = 60 + 10 * times.end;
  int64_t left = most;
  for (bool resume = false;; resume = true) {
    std::vector<std::string> words = command(output_dir, resume);
    for (const auto& [flag, values] : options_.varied) {
      words.insert(words.end(), {"--" + flag, values[random_() % values.size()]});
    }
    SignsOfLife life(output_dir);
    const int64_t from = saved_step(output_dir);
    TRAINKIT_ASSIGN_OR_RETURN(auto process, Process::start(words, output_dir + ".log"));
    ++counts_.starts;
    const Clock::time_point begin = Clock::now();
    const double rest = times.steps > 0 ? 1 - static_cast<double>(from) / static_cast<double>(times.steps) : 1;
    const bool any_moment = resume && ends && random_() % kAnyMomentIn == 0;
    const double from_start = draw(pace_ * times.first_sign);
    const double training = rest * (times.last_checkpoint - (resume ? times.first_sign : times.first_checkpoint));
    double from_life = draw(
        pace_ * (from < times.steps ? kBeyondTraining * training : kBeyondEnd * (times.end - times.last_checkpoint)));
    bool alive = false, interrupted = false, trained = false;
    Clock::time_point counted = begin;  // when the clock of from_life began
    while (process->running()) {
      if (seconds_since(begin) > patience) {
        process->kill_all();
        process->reap();
        return to_status({.exit_code = ExitCode::kStalledWorker,
                          .id = "resume.hang",
                          .where = output_dir + ".log",
                          .problem = fmt::format("the program does not end after {:.0f} s", patience),
                          .expected = fmt::format("about {:.1f} s, as in peace", times.end)});
      }
      // The first run is left alone until it has a checkpoint, a later one mostly until it trains.
      if (!alive && (resume ? life.seen() : !life.latest().empty())) {
        alive = true;
        counted = Clock::now();
      }
      const bool now = alive ? seconds_since(counted) >= from_life : any_moment && seconds_since(begin) >= from_start;
      if (now && left > 0 && (!interrupted || !ends)) {
        trained = saved_step(output_dir) >= times.steps;
        process->signal(options_.signal);
        interrupted = ends;
        --left;
        if (ends) break;
        count_interruption(output_dir, alive, trained);
        counted = Clock::now();
        from_life = draw(pace_ * times.end / 6);
      }
      std::this_thread::sleep_for(kPoll);
    }
    while (process->running() && seconds_since(begin) <= 2 * patience) std::this_thread::sleep_for(kPoll);
    const double whole = seconds_since(begin);
    process->kill_all();
    process->reap();
    const int status = *process->poll();
    const bool stopped = ends && ((WIFSIGNALED(status) && WTERMSIG(status) == options_.signal) ||
                                  (WIFEXITED(status) && WEXITSTATUS(status) == 128 + options_.signal));
    if (interrupted && stopped) {
      count_interruption(output_dir, alive, trained);
      continue;
    }
    if (status != 0) return process->failure();
    if (!resume) pace_ = std::min(pace_, whole / times.end);
    ++counts_.runs;
    return absl::OkStatus();
  }
}

}  // namespace trainkit::tool
