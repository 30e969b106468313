#pragma once
/// Reads the folder of a run for a report.

#include <absl/status/statusor.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "report/run_file.h"
#include "report/run_history.h"

namespace trainkit::detail {

// ---- Reads values of JSON files that may have any content.

/// Returns the text at `key`; empty if there is none.
std::string text_at(const nlohmann::ordered_json& json, std::string_view key);
/// Returns the number at `key`, also from "NaN" and "Infinity"; `otherwise` if there is none.
double number_at(const nlohmann::ordered_json& json, std::string_view key, double otherwise = 0);
/// Returns the value at `key`; null if there is none.
const nlohmann::ordered_json& value_at(const nlohmann::ordered_json& json, std::string_view key);

// ---- A run.

/// What became of a run.
struct Outcome {
  enum class Kind { kGood, kStopped, kFailed, kRunning };
  Kind kind = Kind::kGood;
  /// "finished", "stopped", "failed", "running".
  std::string word = {};
  /// "max_steps: all 2000 steps are done".
  std::string reason = {};
};

/// Seconds of a run in all its sessions.
struct RunTimes {
  double total = 0;
  double training = 0;
  double evaluation = 0;
  double saving = 0;
};

/// Contents of a run's folder. A file that is missing or damaged leaves its member empty.
struct RunData {
  std::string folder = {};
  /// Last component of the folder's path.
  std::string name = {};
  RunHistory history = {};
  nlohmann::ordered_json summary = {}, run = {}, error = {}, results = {};
  /// Settings of config.yaml. The source is that of the first session.
  std::vector<RunSetting> settings = {};
  /// Names in checkpoints/, in order of their steps.
  std::vector<std::string> checkpoints = {};

  /// Sessions of run.json; an empty array without it.
  const nlohmann::ordered_json& sessions() const;
  /// Last session; null if there is none.
  const nlohmann::ordered_json& last_session() const;
  Outcome outcome() const;
  RunTimes times() const;
  /// Metric that selects the best step, and whether higher is better.
  std::string monitor() const;
  bool higher_is_better() const;
  /// "tokens_per_second" if it is logged, else "samples_per_second".
  std::string rate() const;
  bool is_default(const RunSetting& setting) const;
};

/// Returns whether the last session of a run.json has not ended, and its process, another one on this machine, still
/// runs.
bool is_still_running(const nlohmann::ordered_json& run);

/// Reads a run. Error of exit code 2 (run.none) for a folder without a file of a run; of exit code 6 if metrics.jsonl
/// cannot be read.
absl::StatusOr<RunData> load_run(const std::string& folder);
/// Reads a run again: of metrics.jsonl only the records after those of the last call. Errors: those of load_run, with
/// which `data` keeps its earlier contents.
absl::Status update_run(RunData& data);

}  // namespace trainkit::detail
