#pragma once
/// Runs a trainer, interrupts it at random times and resumes it from its last checkpoint each time.

#include <absl/status/statusor.h>

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace trainkit::tool {

struct InterruptOptions {
  /// Program and its flags, without --output_dir and --resume.
  std::vector<std::string> program = {};
  /// SIGKILL for the program and all processes that it has started, or SIGTERM, SIGINT or SIGUSR1 for the program only.
  int signal = 9;
  /// Seed of the random times and of the drawn flag values.
  uint64_t seed = 0;
  /// Flags drawn anew at each start: names, each with its possible values.
  std::vector<std::pair<std::string, std::vector<std::string>>> varied = {};
};

/// Times of events in an uninterrupted run, in seconds since its start.
struct RunTimes {
  /// First record in metrics.jsonl or first checkpoint, whichever came first.
  double first_progress = 0;
  double first_checkpoint = 0, last_checkpoint = 0, end = 0;
  /// Step of the last checkpoint.
  int64_t steps = 0;
};

/// Counts of interruptions, starts and runs.
struct InterruptCounts {
  /// Interruptions after the first checkpoint of a run and before its last one.
  int64_t interruptions = 0;
  /// Part of `interruptions`: before the first progress after a resume, and during the write of a checkpoint.
  int64_t while_starting = 0, while_saving = 0;
  /// Further interruptions after the last checkpoint, when no training step was left.
  int64_t after_training = 0;
  /// Starts of the program, and runs that reached their end.
  int64_t starts = 0, runs = 0;
};

/// Runs a program without and with interruptions, each run in its own output folder. The program must accept the
/// trainers' flags --output_dir, --resume latest and --save_every.
///
/// At most one object per process: it adopts the processes that the program leaves behind (PR_SET_CHILD_SUBREAPER) and
/// waits for them, so that none writes to the folder after the run resumes. If this process is killed, the kernel kills
/// the program.
class InterruptedRuns {
 public:
  explicit InterruptedRuns(InterruptOptions options) : options_(std::move(options)), random_(options_.seed) {}

  /// Runs the program to its end without interruptions. Blocks.
  ///
  /// Errors: exit code 2 if the program cannot be started or saves no checkpoint before its end; the program's own exit
  /// code, with its last line, if it fails.
  absl::StatusOr<RunTimes> run_uninterrupted(const std::string& output_dir);

  /// Runs the program to its end with at most `most` interruptions, all after the first checkpoint. Blocks. Interrupts
  /// less often if a drawn time is after the end. See Note [Random interruptions] in interrupted_run.cpp.
  ///
  /// Errors: the program's own, and exit code 10 if a start takes longer than 60 s plus ten times `times.end`.
  absl::Status run_interrupted(const std::string& output_dir, const RunTimes& times, int64_t most);

  const InterruptCounts& counts() const { return counts_; }

 private:
  class Process;
  std::vector<std::string> command(const std::string& output_dir, bool resume);
  double draw(double longest) { return std::uniform_real_distribution<double>(0, longest)(random_); }
  void count_interruption(const std::string& output_dir, bool progressed, bool trained);

  InterruptOptions options_;
  std::mt19937_64 random_;
  InterruptCounts counts_;
  /// Duration of the fastest run that was never interrupted over that of the reference; at most 1. Scales drawn times
  /// when the machine is less busy than during the reference run.
  double pace_ = 1;
};

}  // namespace trainkit::tool
