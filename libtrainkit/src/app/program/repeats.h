#pragma once
/// Several runs of a trainer, repeats with different seeds or folds: their settings and their summary.

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "trainkit/app/app.h"
#include "trainkit/config/config.h"
#include "trainkit/train/evaluate.h"

namespace trainkit::detail {

/// Returns the settings of one of several runs, from 0; `run` itself for a single one. A run is resumed if `run` is and
/// its folder has a checkpoint.
RunOptions repeat_of(const RunOptions& run, const Repeats& repeats, int64_t index);

/// Returns mean and sample standard deviation (divisor n - 1) of each metric of several runs: "oa" and "oa_std", ... A
/// metric that a run lacks, the recall of a class without test pixels, is averaged over the other runs.
Metrics mean_and_deviation(const std::vector<Metrics>& runs);

/// Writes the settings of several runs to their common folder, from which --resume continues them, and the list of the
/// folder's files.
absl::Status save_common_settings(const ConfigParser& parser, const std::string& program,
                                  const std::string& output_dir);

/// Writes summary.json of several runs to `output_dir`: mean and deviation of their scores and of their final
/// and best metrics, sums of steps, epochs, seconds and bad samples, all warnings, and `runs`, the folder and the seed
/// of each. Reads summary.json of each run, and returns its scores. Errors: exit code 5 (run.file) for a run without
/// summary.json, 6 if the disk fails.
absl::StatusOr<std::vector<Metrics>> summarize_repeats(const std::string& output_dir,
                                                       const std::vector<std::pair<std::string, uint64_t>>& runs);

}  // namespace trainkit::detail
