#pragma once
/// The folder of a run, the checkpoint that it continues, and the settings of one of several runs.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "trainkit/app/placement.h"
#include "trainkit/app/run_options.h"
#include "trainkit/config/config.h"
#include "trainkit/logging/logger.h"
#include "trainkit/train/checkpoint.h"
#include "trainkit/train/evaluate.h"
#include "trainkit/train/trainer.h"

namespace trainkit {

/// Creates `<output_dir>/results`, the folder for the files of App::on_best and App::on_results, and returns its path.
/// Write the files with write_file_atomically(): run.json then lists them, so that --overwrite may remove them. A new
/// run does not start in a folder with other files in results/. Errors: exit code 6.
absl::StatusOr<std::string> results_dir(const RunOptions& run);

/// Returns the checkpoint that --resume names. Errors: those of resolve_checkpoint, with the flag.
absl::StatusOr<CheckpointPath> resumed_checkpoint(const RunOptions& run);

/// Returns the path of a file that the run to continue has stored (App::save), "split.json" for example; nullopt
/// without
/// --resume, and if that run has no such file. Errors: those of resumed_checkpoint.
absl::StatusOr<std::optional<std::string>> earlier_file(const RunOptions& run, const std::string& name);

/// Checks that the run to continue was trained on data with this digest (TrainingTask::data_digest). OK without
/// --resume, and if one of the digests is unknown. run_app() calls it after App::open. A trainer whose open() writes
/// files calls it before. Errors: exit code 4 for other data, 5 for --resume.
absl::Status check_data(const RunOptions& run, const std::string& digest);

/// Writes the run folder: config.yaml, metrics.jsonl, tensorboard/, bad_samples.csv, summary.json and run.json, and
/// shows the progress on the screen. With several ranks only the first one writes and prints.
class RunFolder {
 public:
  /// Creates the folder and its files. On resume it removes the log records after the resumed step. `program` is the
  /// project's name in W&B; `files` are AppInfo::files. Errors: exit code 5 for --resume, 6 if the disk fails, 2 if W&B
  /// cannot start.
  static absl::StatusOr<std::unique_ptr<RunFolder>> open(const ConfigParser& parser, const RunOptions& run,
                                                         const Placement& placement, const std::string& program,
                                                         const std::vector<std::string>& files = {});

  /// Returns the logger of the run; print() shows a line above the progress bar.
  RunLogger& logger() { return *logger_; }
  const std::string& path() const { return path_; }

  /// Adds the unreadable rows that this rank met in `part` ("train", "validation", "test") to bad_samples.csv. A row
  /// that is already listed is ignored.
  void add_bad_samples(const std::string& part, const std::vector<BadSample>& samples);

  /// Prints the monitor's summary, closes the log and writes bad_samples.csv and summary.json. Every rank must call it,
  /// since the list of unreadable rows covers all ranks. `scores` and `warnings` are those of summary.json.
  /// Returns the exit code of the process: 0, or 128 + the signal that stopped the run. Error: the first failure of a
  /// log (exit code 6).
  absl::StatusOr<int> finish(const TrainerResult& result, const Metrics& scores = {},
                             const std::vector<std::string>& warnings = {});

 private:
  RunFolder(std::string path, std::shared_ptr<ProcessGroup> group, std::unique_ptr<RunLogger> logger)
      : path_(std::move(path)), group_(std::move(group)), logger_(std::move(logger)) {}
  bool is_first() const { return !group_ || group_->rank() == 0; }
  /// Writes the unreadable rows of all ranks, and returns their number per part as scores.
  absl::StatusOr<Metrics> write_bad_samples();
  void add_bad_line(std::string line);
  std::string path_;
  std::shared_ptr<ProcessGroup> group_;
  std::unique_ptr<RunLogger> logger_;
  std::vector<std::string> bad_samples_;      // lines of bad_samples.csv
  std::unordered_set<std::string> bad_rows_;  // part and index of each
};

}  // namespace trainkit
