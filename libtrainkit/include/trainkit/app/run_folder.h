#pragma once
/// Turns the shared flags into a run: library options, the run folder, and the last lines.

#include <absl/status/statusor.h>

#include <memory>
#include <string>
#include <utility>

#include "trainkit/app/memory_plan.h"
#include "trainkit/app/placement.h"
#include "trainkit/app/run_options.h"
#include "trainkit/config/config.h"
#include "trainkit/core/processors.h"
#include "trainkit/logging/logger.h"
#include "trainkit/train/trainer.h"

namespace trainkit {

/// Builds trainer options from the shared flags for training on `loader`. `min_lr_factor` is the learning rate at the
/// end of the schedule, as a factor. --monitor shows the live table. Unset eval_every and save_every become one epoch.
/// A default warm-up that is too long for a short run becomes a tenth of the run; run.warmup_steps is updated. Errors
/// are those of the schedule and name the flag.
absl::StatusOr<TrainerOptions> trainer_options(const ConfigParser& parser, RunOptions& run, const Placement& placement,
                                               const Prefetcher& loader, double min_lr_factor = 0);

/// Returns the precision of a run on `device`, see resolve_precision.
Precision run_precision(const RunOptions& run, at::Device device);
/// "fp32", "bf16" or "fp16".
const char* name_of(Precision precision);

/// Returns the value of --cuda_graph.
CudaGraph run_cuda_graph(const RunOptions& run);

/// Sets the number of LibTorch's intra-op threads and returns it. The threads share the processors that the loader's
/// workers leave free (suggest_intra_op_threads) with the other ranks of this machine. The number never exceeds the
/// current one (OMP_NUM_THREADS). The last bits of LibTorch's sums depend on this number. It depends only on the flags
/// and the machine, so a resumed run uses the same number.
int share_processors(const RunOptions& run, const DevicePlan& plan, const Machine& machine, ReadCost cost);

/// Returns the facts for the first lines of a run: strategy and devices, batches, precision, parameters, memory of
/// weights and optimizer, fields of a batch.
RunFacts describe_run(const RunOptions& run, Trainer& trainer, const Placement& placement, const Prefetcher& loader);

/// Returns the common last lines of a trainer: "1200 steps in 2:10, data wait 0.3%"; then the TensorBoard command of
/// the run, if it has TensorBoard files, and the command that resumes it, if a signal stopped it, each after a line
/// end.
std::string describe_time(const TrainerResult& result);
std::string describe_next(const TrainerResult& result, const RunOptions& run, const std::string& program);

/// Creates `<output_dir>/results`, the folder for the files of App::on_best and App::test, and returns its path.
/// --overwrite removes it with everything in it. Errors: exit code 6.
absl::StatusOr<std::string> results_dir(const RunOptions& run);

/// Logs the scores of a test as a record of the split "test", and a table of them as text (Markdown). They come after
/// the run's last checkpoint, so a run resumed from it logs them again (Logger::rewind).
void log_test(Logger& logger, const TrainerResult& result, const Metrics& scores, const std::string& table);

/// Writes the run folder: config.yaml, metrics.jsonl, tensorboard/, loss.svg, bad_samples.csv and summary.json, and
/// shows the progress on the screen. With several ranks only the first one writes and prints.
class RunFolder {
 public:
  /// Creates the folder and its files. On resume it removes the log records after the resumed step. `program` is the
  /// project's name in W&B. Errors: exit code 5 for --resume, 6 if the disk fails, 2 if W&B cannot start.
  static absl::StatusOr<std::unique_ptr<RunFolder>> open(const ConfigParser& parser, const RunOptions& run,
                                                         const Placement& placement, const std::string& program);

  /// Returns the logger of the run; print() shows a line above the progress bar.
  RunLogger& logger() { return *logger_; }
  const std::string& path() const { return path_; }

  /// Prints the monitor's summary, closes the log and writes bad_samples.csv, loss.svg and summary.json. Every rank
  /// must call it, since the list of bad samples covers all ranks. `scores` are the scores in summary.json. Returns the
  /// exit code of the process: 0, or 128 + the signal that stopped the run. Error: the first failure of a log (exit
  /// code 6).
  absl::StatusOr<int> finish(const TrainerResult& result, const Prefetcher& loader, const Metrics& scores = {});

 private:
  RunFolder(std::string path, std::shared_ptr<ProcessGroup> group, std::unique_ptr<RunLogger> logger)
      : path_(std::move(path)), group_(std::move(group)), logger_(std::move(logger)) {}
  bool is_first() const { return !group_ || group_->rank() == 0; }
  std::string path_;
  std::shared_ptr<ProcessGroup> group_;
  std::unique_ptr<RunLogger> logger_;
};

}  // namespace trainkit
