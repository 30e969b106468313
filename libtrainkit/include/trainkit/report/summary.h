#pragma once
/// Writes the outcome of a run: summary.json and error.json.

#include <absl/status/status.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace trainkit {

/// Contents of summary.json. Scores are fractions of 1.
struct RunSummary {
  /// Reason for the end of the run: "max_epochs", "max_steps", "max_time", "early_stopping", "signal" or "error".
  std::string exit_reason = "finished";
  int exit_code = 0;
  int64_t steps = 0;
  double epochs = 0;
  double wall_seconds = 0;
  /// Share of the wall time spent in steps that count, that is, without start-up, evaluation, checkpoints and repeated
  /// steps.
  double effective_fraction = 0;
  /// Peak memory of one device in a step, predicted and measured, allocated and reserved. 0 if not predicted or not
  /// known.
  int64_t predicted_memory_bytes = 0;
  int64_t real_memory_bytes = 0;
  int64_t predicted_reserved_bytes = 0;
  int64_t real_reserved_bytes = 0;
  /// Metrics at the end and at the best step, by name: {"val_loss", 1.47}.
  std::vector<std::pair<std::string, double>> final_metrics = {};
  std::vector<std::pair<std::string, double>> best_metrics = {};
  /// Step of the best evaluation. -1 if there was no evaluation.
  int64_t best_step = -1;
  /// Further scores of the run as separate entries, {"oa", 0.997}. A dot in a name creates a nested object:
  /// {"popularity.recall@10", 0.1} is entry "recall@10" of object "popularity".
  std::vector<std::pair<std::string, double>> scores = {};
  /// Warnings at the start of the run, such as classes that a part of the data lacks.
  std::vector<std::string> warnings = {};
  /// Folder and seed of each run, in the summary of several runs.
  std::vector<std::pair<std::string, uint64_t>> runs = {};
  /// {"trainkit", "0.1.0"}, {"libtorch", "2.11.0"}, ...
  std::map<std::string, std::string> versions = {};
};

/// Returns the versions of this library, of LibTorch and of the compiler.
std::map<std::string, std::string> library_versions();

/// Returns the text of summary.json. NaN and infinity are strings, as in metrics.jsonl.
std::string to_json(const RunSummary& summary);

/// Facts about a run for its first lines, in order: name and text. An empty name adds a text to the fact before it.
using RunFacts = std::vector<std::pair<std::string, std::string>>;

/// Formats one fact per line, without a line end at the end: the name, then its text from column 12. After a name that
/// ends in a colon ("warning:") the text follows at once.
std::string to_text(const RunFacts& facts);

/// Writes `<output_dir>/summary.json` atomically, and removes the error.json of an earlier attempt if the exit code is
/// 0. Exit code 6 if it cannot be written.
absl::Status write_summary(const std::string& output_dir, const RunSummary& summary);

/// Writes `<output_dir>/error.json` (error_json in core/error.h) atomically. Exit code 6 if it cannot be written.
absl::Status write_error(const std::string& output_dir, const absl::Status& error);

}  // namespace trainkit
