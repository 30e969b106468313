#pragma once
/// summary.json and error.json: how a run ended.

#include <absl/status/status.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trainkit {

/// What summary.json says. Scores are fractions of 1.
struct RunSummary {
  /// Why the run ended: "finished", "early_stopping", "max_time", "signal", "error".
  std::string exit_reason = "finished";
  int exit_code = 0;
  int64_t steps = 0;
  double epochs = 0;
  double wall_seconds = 0;
  /// Share of the wall time that was spent in steps that count: not in start, evaluation, saves and repeated steps.
  double effective_fraction = 0;
  /// The most that lives on one device in a step; 0 where it was not predicted, or cannot be told.
  int64_t predicted_memory_bytes = 0;
  int64_t real_memory_bytes = 0;
  int64_t predicted_reserved_bytes = 0;
  int64_t real_reserved_bytes = 0;
  /// Metrics at the end, and at the step that was best, under their names: {"val_loss", 1.47}.
  std::vector<std::pair<std::string, double>> final_metrics = {};
  std::vector<std::pair<std::string, double>> best_metrics = {};
  /// -1: no evaluation took place.
  int64_t best_step = -1;
  /// What the run is judged by, if that is more than its last evaluation: entries of their own, {"oa", 0.997}. What
  /// stands before a dot is an object that the rest is an entry of: {"popularity.recall@10", 0.1}.
  std::vector<std::pair<std::string, double>> scores = {};
  /// {"trainkit", "0.1.0"}, {"libtorch", "2.11.0"}, ...
  std::map<std::string, std::string> versions = {};
};

/// Versions of this library, of LibTorch and of the compiler.
std::map<std::string, std::string> library_versions();

/// The text of summary.json. Not a number and infinity are strings, as in metrics.jsonl.
std::string to_json(const RunSummary& summary);

/// The first lines of a run as one JSON object, for --dry_run --json: {"strategy": "single on cpu", "data": ["3336
/// rows", "x (12, 64) Long"], ...}. A line's first word is its name; lines that begin with a space go on with the one
/// before.
std::string plan_to_json(std::string_view lines);

/// Writes `<output_dir>/summary.json` as a whole or not at all, and removes an error.json of an earlier attempt if the
/// exit code is 0. Exit code 6.
absl::Status write_summary(const std::string& output_dir, const RunSummary& summary);

/// Writes `<output_dir>/error.json` (error_json in core/error.h) as a whole or not at all. Exit code 6.
absl::Status write_error(const std::string& output_dir, const absl::Status& error);

}  // namespace trainkit
