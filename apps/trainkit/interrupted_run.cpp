#include "trainkit/interrupted_run.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <optional>
#include <thread>

#include "core/files/new_files.h"
#include "core/machine/cgroup.h"
#include "trainkit/command.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/process.h"
#include "trainkit/train/checkpoint.h"

namespace trainkit::tool {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// Note [Random interruptions]
//
// A start of the program passes three phases: it loads its checkpoint, it trains, it ends after the last checkpoint. An
// interruption must be possible in each, but a run must also reach its end.
//
// 1. The first start is never interrupted before its first checkpoint: nothing could be resumed.
// 2. One resumed start in kLoadingShare may be interrupted while it loads, at a time drawn from [0, first_progress].
//    The other starts are interrupted only after they show progress (ProgressWatch). Otherwise a slow start would be
//    interrupted again and again without a step.
// 3. While steps are left, the time after the first progress is drawn from [0, kBeyondTraining x the remaining training
//    time]. The factor is above 1, so some starts finish their training.
// 4. After the last checkpoint it is drawn from [0, kBeyondEnd x the time to the end], so most starts reach the end.
//    These interruptions are counted separately (after_training), since they cannot change a step.
// 5. SIGUSR1 saves without ending the program: the same start is interrupted again after a time drawn from a sixth of
//    the run.
//
// All times are those of the uninterrupted run, scaled by pace_. Whether a signal interrupted the run is decided by the
// way the program ended: a program that had finished before the signal arrived is a completed run.
constexpr auto kPoll = std::chrono::milliseconds(2);
constexpr int kLoadingShare = 8;
constexpr double kBeyondTraining = 1.25;
constexpr double kBeyondEnd = 3;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// Returns the first line of the last error in `text`, or the last line if there is no error.
std::string last_line(const std::string& text) {
  const size_t error = text.rfind("trainkit: error[");
  const size_t end = text.find_last_not_of('\n');
  if (end == std::string::npos) return "";
  const size_t begin = error != std::string::npos ? error : text.rfind('\n', end) + 1;
  return text.substr(begin, text.find('\n', begin) - begin);
}

/// Watches the files of a run for progress.
class ProgressWatch {
 public:
  explicit ProgressWatch(std::string output_dir) : output_dir_(std::move(output_dir)) { has_advanced(); }

  std::string latest() const { return detail::read_text(output_dir_ + "/checkpoints/latest"); }

  /// Returns whether metrics.jsonl has grown or the latest checkpoint has changed since the last call. A resumed run
  /// first truncates the records after its checkpoint; a shorter file is not progress.
  bool has_advanced() {
    std::error_code none;
    const auto size = fs::file_size(output_dir_ + "/metrics.jsonl", none);
    const uintmax_t bytes = none ? 0 : size;
    std::string now = latest();
    const bool advanced = bytes > bytes_ || now != latest_;
    bytes_ = bytes;
    latest_ = std::move(now);
    return advanced;
  }

 private:
  std::string output_dir_, latest_ = {};
  uintmax_t bytes_ = 0;
};

/// Returns the step of the last checkpoint; 0 if there is none.
int64_t saved_step(const std::string& output_dir) {
  const auto latest = resolve_checkpoint("latest", output_dir);
  return latest.ok() ? latest->step : 0;
}

absl::Status hang(const std::string& output_dir, double time_limit, const RunTimes& times) {
  return to_status({.exit_code = ExitCode::kStalledWorker,
                    .id = "resume.hang",
                    .where = output_dir + ".log",
                    .problem = fmt::format("the program has not ended after {:.0f} s", time_limit),
                    .expected = fmt::format("about {:.1f} s, as without interruptions", times.end)});
}

/// Returns whether a process ended by `signal`, directly or through a shell.
bool was_stopped_by(int signal, int status) {
  return (WIFSIGNALED(status) && WTERMSIG(status) == signal) ||
         (WIFEXITED(status) && WEXITSTATUS(status) == 128 + signal);
}

}  // namespace

/// Runs the program in its own process group, with all processes that it starts.
class InterruptedRuns::Process {
 public:
  /// Starts the program and appends its output to the file `log`. Exit code 2 if exec fails.
  static absl::StatusOr<std::unique_ptr<Process>> start(std::vector<std::string> words, const std::string& log);
  explicit Process(pid_t pid, std::string log) : pid_(pid), log_(std::move(log)) {}
  ~Process() {
    kill_all();
    reap();
  }

  /// Returns the status of waitpid if the program has ended. Does not block.
  std::optional<int> poll() {
    int status = 0;
    if (!ended_ && waitpid(pid_, &status, WNOHANG) == pid_) ended_ = status;
    return ended_;
  }
  bool running() { return !poll(); }
  void signal(int number) {
    if (running()) ::kill(number == SIGKILL ? -pid_ : pid_, number);
  }
  /// Kills the whole process group, including processes that outlive the program.
  void kill_all() { ::kill(-pid_, SIGKILL); }
  /// Waits for the program and for adopted processes: a launcher's ranks end shortly after the launcher.
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
  const trainkit::detail::UniqueDescriptor output(
      open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, trainkit::detail::kNewFileMode));
  if (output.get() < 0) {
    return to_status({.exit_code = ExitCode::kStorage,
                      .id = "tool.log",
                      .where = log,
                      .problem = std::string("cannot be written: ") + std::strerror(errno)});
  }
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  TRAINKIT_ASSIGN_OR_RETURN(const pid_t pid,
                            start_process({.words = std::move(words), .output = output.get(), .errors = output.get()}));
  return std::make_unique<Process>(pid, log);
}

/// Describes the end of the program as an error. Keeps the exit code of our programs; others become kBug.
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
  // Our own programs are given without a path and are in this program's folder.
  const std::string path = program_folder() + "/" + words[0];
  if (words[0].find('/') == std::string::npos && fs::exists(path)) words[0] = path;
  words.insert(words.end(), {"--output_dir", output_dir});
  if (resume) words.insert(words.end(), {"--resume", "latest"});
  return words;
}

absl::StatusOr<RunTimes> InterruptedRuns::run_uninterrupted(const std::string& output_dir) {
  ProgressWatch progress(output_dir);
  TRAINKIT_ASSIGN_OR_RETURN(auto process, Process::start(command(output_dir, /*resume=*/false), output_dir + ".log"));
  const Clock::time_point begin = Clock::now();
  RunTimes times;
  std::string last;
  const auto look = [&] {
    if (times.first_progress == 0 && progress.has_advanced()) times.first_progress = seconds_since(begin);
    std::string latest = progress.latest();
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
                      .problem = "the run saved no checkpoint before its end, so it cannot be interrupted and resumed",
                      .hint = "use a smaller --save_every or a longer run"});
  }
  return times;
}

void InterruptedRuns::count_interruption(const std::string& output_dir, bool progressed, bool trained) {
  if (trained) {
    ++counts_.after_training;
    return;
  }
  ++counts_.interruptions;
  counts_.while_starting += !progressed;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(output_dir + "/checkpoints", none)) {
    if (!entry.path().filename().string().starts_with(".tmp-")) continue;
    ++counts_.while_saving;
    break;
  }
}

// See Note [Random interruptions].
absl::Status InterruptedRuns::run_interrupted(const std::string& output_dir, const RunTimes& times, int64_t most) {
  const bool ends = options_.signal != SIGUSR1;
  const double time_limit = 60 + 10 * times.end;
  int64_t left = most;
  for (bool resume = false;; resume = true) {
    std::vector<std::string> words = command(output_dir, resume);
    for (const auto& [flag, values] : options_.varied)
      words.insert(words.end(), {"--" + flag, values[random_() % values.size()]});
    ProgressWatch progress(output_dir);
    const int64_t from = saved_step(output_dir);
    TRAINKIT_ASSIGN_OR_RETURN(auto process, Process::start(words, output_dir + ".log"));
    ++counts_.starts;
    const Clock::time_point begin = Clock::now();
    const double rest = times.steps > 0 ? 1 - static_cast<double>(from) / static_cast<double>(times.steps) : 1;
    const bool while_loading = resume && ends && random_() % kLoadingShare == 0;
    const double after_start = draw(pace_ * times.first_progress);
    const double training = rest * (times.last_checkpoint - (resume ? times.first_progress : times.first_checkpoint));
    double after_progress = draw(
        pace_ * (from < times.steps ? kBeyondTraining * training : kBeyondEnd * (times.end - times.last_checkpoint)));
    bool progressed = false, interrupted = false, trained = false;
    Clock::time_point counted = begin;  // start of the time after_progress
    while (process->running()) {
      if (seconds_since(begin) > time_limit) {
        process->kill_all();
        process->reap();
        return hang(output_dir, time_limit, times);
      }
      if (!progressed && (resume ? progress.has_advanced() : !progress.latest().empty())) {
        progressed = true;
        counted = Clock::now();
      }
      const bool now =
          progressed ? seconds_since(counted) >= after_progress : while_loading && seconds_since(begin) >= after_start;
      if (now && left > 0 && (!interrupted || !ends)) {
        trained = saved_step(output_dir) >= times.steps;
        process->signal(options_.signal);
        interrupted = ends;
        --left;
        if (ends) break;
        count_interruption(output_dir, progressed, trained);
        counted = Clock::now();
        after_progress = draw(pace_ * times.end / 6);
      }
      std::this_thread::sleep_for(kPoll);
    }
    while (process->running() && seconds_since(begin) <= 2 * time_limit) std::this_thread::sleep_for(kPoll);
    const double whole = seconds_since(begin);
    process->kill_all();
    process->reap();
    const int status = *process->poll();
    if (interrupted && ends && was_stopped_by(options_.signal, status)) {
      count_interruption(output_dir, progressed, trained);
      continue;
    }
    if (status != 0) return process->failure();
    if (!resume) pace_ = std::min(pace_, whole / times.end);
    ++counts_.runs;
    return absl::OkStatus();
  }
}

}  // namespace trainkit::tool
