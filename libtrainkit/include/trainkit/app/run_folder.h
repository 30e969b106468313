#pragma once
/// From the shared flags to a run: the library's options, the folder that a run writes, and how it ends.

#include <absl/status/statusor.h>

#include <memory>
#include <string>
#include <utility>

#include "trainkit/app/placement.h"
#include "trainkit/app/run_options.h"
#include "trainkit/config/config.h"
#include "trainkit/core/processors.h"
#include "trainkit/logging/logger.h"
#include "trainkit/train/trainer.h"

namespace trainkit {

/// Trainer options from the shared flags for training on `loader`; `min_lr_factor` is where the schedule ends.
/// --monitor shows the live table. eval_every and save_every become an epoch where they were not given; a warm-up that
/// nobody asked for becomes a tenth of a run too short for it (run.warmup_steps says so then). Errors are those of the
/// schedule, blamed on the flag.
absl::StatusOr<TrainerOptions> trainer_options(const ConfigParser& parser, RunOptions& run, const Placement& placement,
                                               const Prefetcher& loader, double min_lr_factor = 0);

/// What a run computes in on `device`, see resolve_precision.
Precision run_precision(const RunOptions& run, at::Device device);

/// What --cuda_graph says.
CudaGraph run_cuda_graph(const RunOptions& run);

/// Gives LibTorch's own loops the processors that the loader's workers leave (suggest_intra_op_threads), shared by the
/// ranks of this machine; never more threads than it has already (OMP_NUM_THREADS). Returns their number. Sums of
/// LibTorch depend on it in the last bits: it follows from the flags and the machine alone, so that a resumed run has
/// the same.
int share_processors(const RunOptions& run, const Machine& machine, ReadCost cost);

/// The first lines of a run: strategy and devices, batches, precision, parameters, memory of weights and optimizer, the
/// fields of a batch.
std::string describe_run(const RunOptions& run, const TrainerOptions& options, const Placement& placement,
                         const DeviceReplicator& devices, const Prefetcher& loader);

/// What the last lines of every trainer have alike. "1200 steps in 2:10, data wait 0.3%"; and where TensorBoard finds
/// the run, with the command that goes on with it if a signal stopped it.
std::string describe_time(const TrainerResult& result);
std::string describe_next(const TrainerResult& result, const RunOptions& run, const std::string& program);

/// Logs the scores of a test as a record of the split "test", and a table of them as text (Markdown), behind the run's
/// last checkpoint: whoever goes on from that logs them again (Logger::rewind).
void log_test(Logger& logger, const TrainerResult& result, const Metrics& scores, const std::string& table);

/// `<output_dir>` of a run: config.yaml, metrics.jsonl, tensorboard/, loss.svg, bad_samples.csv and summary.json, and
/// the progress on the screen. Of several ranks the first alone writes and prints; the others' objects do nothing.
class RunFolder {
 public:
  /// Makes the folder and its files; what an earlier run logged after the step that this one goes on from is cut off.
  /// `program` is the project's name in W&B. Errors: exit code 5 for --resume, 6 if the disk fails, 2 if W&B cannot
  /// start.
  static absl::StatusOr<std::unique_ptr<RunFolder>> open(const ConfigParser& parser, const RunOptions& run,
                                                         const Placement& placement, const std::string& program);

  /// Where records go; print() shows a line above the progress bar.
  RunLogger& logger() { return *logger_; }
  const std::string& path() const { return path_; }

  /// Prints the monitor's line, ends the log and writes bad_samples.csv, loss.svg and summary.json. Returns the exit
  /// code of the process: 0, or 128 + the signal that stopped the run. Or the first failure of a log, exit code 6.
  /// Every rank calls it: the bad samples of all are listed. `scores` are what the run is judged by, for summary.json.
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
