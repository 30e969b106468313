#pragma once
/// The folder that a run writes, and the settings of RunOptions as the library's own options.

#include <absl/status/statusor.h>

#include <memory>
#include <string>

#include "trainkit/config/config.h"
#include "trainkit/config/run_options.h"
#include "trainkit/logging/logger.h"
#include "trainkit/train/trainer.h"

namespace trainkit {

/// Loader options for training, from the shared flags.
PrefetcherOptions training_loader_options(const RunOptions& run, at::Device device);
/// The same for evaluation, which never drops rows.
PrefetcherOptions evaluation_loader_options(const RunOptions& run, at::Device device);

/// Trainer options from the shared flags for a loader of `batches_per_epoch` batches. Intervals that were not given become
/// an epoch. Errors are those of the schedule (exit code 2 or 3).
absl::StatusOr<TrainerOptions> trainer_options(const ConfigParser& parser, const RunOptions& run, at::Device device,
                                               int64_t batches_per_epoch);

/// The first lines of a run: devices, batches, precision, parameters and the first batch's fields.
std::string describe_run(const RunOptions& run, const DeviceReplicator& devices, const Prefetcher& loader,
                         const TrainerOptions& options);

/// `<output_dir>` with config.yaml, metrics.jsonl, tensorboard/, loss.svg and summary.json, and the progress on the screen.
class RunFolder {
 public:
  /// Makes the folder and its files. Errors: exit code 6 if the disk fails, 2 if W&B is asked for and not installed.
  static absl::StatusOr<std::unique_ptr<RunFolder>> open(const ConfigParser& parser, const RunOptions& run,
                                                         const std::string& program);

  /// Where records go; print() shows a line above the progress bar.
  Logger& logger() { return logger_; }

  /// Writes summary.json and loss.svg, and ends the log. Returns the process' exit code: 0, or 128 + the signal that
  /// stopped the run; or the first failure of a log, exit code 6.
  absl::StatusOr<int> finish(const TrainerResult& result);

 private:
  RunFolder(std::string path, std::string program) : path_(std::move(path)), program_(std::move(program)) {}
  std::string path_;
  std::string program_;
  RunLogger logger_;
};

}  // namespace trainkit
