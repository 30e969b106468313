#pragma once
/// Writes and reads run.json: the sessions of a run, their machine, command line and end (docs/formats/run.md).

#include <absl/status/status.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "trainkit/logging/logger.h"
#include "trainkit/monitor/monitor.h"
#include "trainkit/report/summary.h"

namespace trainkit::detail {

inline constexpr char kRunFile[] = "run.json";

/// A setting in config.yaml: its value as YAML, and its source.
struct RunSetting {
  std::string name, value, source;
};

/// Reads the settings from the text of a config.yaml, as ConfigParser::to_yaml writes it.
std::vector<RunSetting> parse_settings(std::string_view yaml);

/// What is known when a session starts.
struct SessionStart {
  std::string program = {};
  /// Text of config.yaml. run.json keeps the settings that are not defaults.
  std::string config = {};
  /// Step of the checkpoint that the session continues; -1 for a new run.
  int64_t resume_step = -1;
  /// ConfigParser::changes() of a session that continues a run.
  std::vector<std::string> changes = {};
  /// Identifies the run in the names of its TensorBoard files; see make_run_id(). Empty: a run of an earlier version.
  std::string id = {};
  /// Files that the run writes next, relative to its folder.
  std::vector<std::string> files = {};
};

/// Returns the id of the run in `output_dir`; empty if there is none, or a run of an earlier version.
std::string read_run_id(const std::string& output_dir);
/// Returns a new random id of 16 hexadecimal digits.
std::string make_run_id();

/// Adds a session of this process to `<output_dir>/run.json`. A session that does not continue a run replaces the file.
/// From now on the list "files" of run.json gets the name of each file that this process writes to the folder with
/// write_file_atomically(), before the file gets its name. end_session() adds the digests of their contents. Errors:
/// exit code 6.
absl::Status begin_session(const std::string& output_dir, const SessionStart& start);

/// Writes a run.json without sessions to the common folder of several runs: the list of its files, each with the digest
/// of its contents, or "" if that changes.
absl::Status write_file_list(const std::string& output_dir, const std::string& program,
                             const std::vector<std::pair<std::string, std::string>>& files);

/// The list "files" of a run.json: a name is null while the run writes the file, later the digest of its contents. Null
/// for a run of an earlier version, which has no list, and for a file that is not valid.
const nlohmann::ordered_json& listed_files(const nlohmann::ordered_json& run);
/// Whether this is the content of a run.json, of this or an earlier version.
bool is_run_file(const nlohmann::ordered_json& run);

/// Adds the first lines of the run, and the metric that selects the best step, to the session of this process.
absl::Status describe_session(const std::string& output_dir, const RunFacts& facts, const std::string& monitor,
                              bool higher_is_better);

/// Ends the session of this process, with the report of its monitor. `summary` has the reason, steps and times. Does
/// nothing if the last session of the file is that of another process.
absl::Status end_session(const std::string& output_dir, const RunSummary& summary, const MonitorReport& monitor);

/// Returns a sink that writes each report of the monitor into the session of this process, so that `trainkit watch`
/// shows memory and advice during the run. Its errors are only warnings.
std::unique_ptr<Logger> open_session_log(const std::string& output_dir);

/// Reads a JSON file of at most 64 MiB. Returns null for a file that is missing or not valid.
nlohmann::ordered_json read_json_file(const std::string& path);

}  // namespace trainkit::detail
