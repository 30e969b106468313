#pragma once
/// A trainer that is interrupted at random moments and goes on from its last checkpoint each time.

#include <absl/status/statusor.h>

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace trainkit::tool {

struct InterruptOptions {
  /// The program and its flags, without --output_dir and --resume.
  std::vector<std::string> program = {};
  /// SIGKILL (of all processes that the program has started), or SIGTERM, SIGINT or SIGUSR1 to the program alone.
  int signal = 9;
  uint64_t seed = 0;
  /// Flags that change from start to start: names, each with the values to draw from.
  std::vector<std::pair<std::string, std::vector<std::string>>> varied = {};
};

/// When things happened in a run that nobody disturbed, in seconds since its start.
struct RunTimes {
  /// The first record in metrics.jsonl or the first checkpoint, whichever came first.
  double first_sign = 0;
  double first_checkpoint = 0, last_checkpoint = 0, end = 0;
  /// Steps of the last checkpoint.
  int64_t steps = 0;
};

/// What became of the interruptions.
struct InterruptCounts {
  /// Those after the first checkpoint of a run and before its last one.
  int64_t interruptions = 0;
  /// Of those: before the first sign of life after a resume, and while a checkpoint was being written.
  int64_t while_starting = 0, while_saving = 0;
  /// Besides those: after the last checkpoint, when no step was left to be done otherwise.
  int64_t after_training = 0;
  /// Starts of the program, and runs that came to their end.
  int64_t starts = 0, runs = 0;
};

/// Runs a program once in peace and as often as is asked for with interruptions, each in an output folder of its own.
/// The program is one of ours or takes the same flags: --output_dir, --resume latest, --save_every.
///
/// One per process at a time: it takes in the processes that the program leaves behind (PR_SET_CHILD_SUBREAPER), so
/// that none is left to write when the run goes on. If this process is killed, so is the program.
class InterruptedRuns {
 public:
  explicit InterruptedRuns(InterruptOptions options) : options_(std::move(options)), random_(options_.seed) {}

  /// Runs to the end. Exit code 2 if the program cannot be started or saves no checkpoint before its end; the program's
  /// own code, with its last line, if it fails.
  absl::StatusOr<RunTimes> undisturbed(const std::string& output_dir);

  /// Runs to the end with at most `most` interruptions on the way, after the first checkpoint, those after the last one
  /// among them. Fewer if the moments drawn lie behind the end. Errors: the program's, and exit code 10 if it takes ten
  /// times as long as in peace and a minute.
  absl::Status disturbed(const std::string& output_dir, const RunTimes& times, int64_t most);

  const InterruptCounts& counts() const { return counts_; }

 private:
  class Process;
  std::vector<std::string> command(const std::string& output_dir, bool resume);
  double draw(double longest) { return std::uniform_real_distribution<double>(0, longest)(random_); }
  void count_interruption(const std::string& output_dir, bool alive, bool trained);

  InterruptOptions options_;
  std::mt19937_64 random_;
  InterruptCounts counts_;
  double pace_ = 1;  // time that a run takes by now, on a machine that is less busy, as a share of that in peace
};

}  // namespace trainkit::tool
