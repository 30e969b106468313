#include "report/report_data.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "logging/field_names.h"
#include "report/report.h"
#include "trainkit/core/error.h"
#include "trainkit/core/format.h"
#include "trainkit/core/status.h"
#include "trainkit/logging/sinks.h"

namespace trainkit::detail {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

bool is_run(const fs::path& folder) {
  std::error_code ignored;
  for (const char* name : {"metrics.jsonl", "error.json"}) {
    if (fs::is_regular_file(folder / name, ignored)) return true;
  }
  const Json run = read_json_file((folder / kRunFile).string());
  return !run.is_null() && !(is_run_file(run) && run[fields::kSessions].empty());  // the common folder of several runs
}

/// Returns whether the process of a session on this machine still runs. A number may be used again, so the command line
/// is compared too.
bool is_alive(const Json& session) {
  char name[HOST_NAME_MAX + 1] = "";
  ::gethostname(name, sizeof name - 1);
  if (text_at(value_at(session, fields::kHost), fields::kName) != escape_text(name)) return false;
  const Json& command = value_at(session, fields::kCommand);
  // Files of /proc have no size.
  std::ifstream file(fmt::format("/proc/{}/cmdline", static_cast<int64_t>(number_at(session, fields::kPid))));
  std::string program;
  if (!std::getline(file, program, '\0') || !command.is_array() || command.empty()) return false;
  return command[0] == format_text(program);
}

/// Returns the index of the session that logged a record at Unix time `time`.
size_t session_at(const Json& sessions, double time) {
  size_t index = 0;
  for (size_t i = 0; i < sessions.size(); ++i) {
    if (number_at(sessions[i], fields::kStarted, kUnknown) <= time) index = i;
  }
  return index;
}

/// Adds up the time between records, without the time between sessions.
std::vector<double> elapsed(const std::vector<LogRecord>& records, const Json& sessions) {
  std::vector<double> seconds(records.size(), kUnknown);
  double sum = 0, before = kUnknown;
  size_t session = sessions.size();
  for (size_t i = 0; i < records.size(); ++i) {
    const double* const time = records[i].find(fields::kTime);
    if (!time || !std::isfinite(*time)) continue;
    if (const size_t own = session_at(sessions, *time); own != session && own < sessions.size()) {
      session = own;
      before = number_at(sessions[own], fields::kStarted, *time);
    }
    if (std::isfinite(before)) sum += std::max(*time - before, 0.0);
    before = *time;
    seconds[i] = sum;
  }
  return seconds;
}

std::vector<std::string> checkpoints_of(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (fs::directory_iterator at(folder + "/checkpoints", ignored), end; !ignored && at != end; at.increment(ignored)) {
    const std::string name = at->path().filename().string();
    if (name.starts_with("step-") && fs::is_directory(at->path(), ignored)) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// Gives the settings of config.yaml the sources that they had in the first session: a resumed run takes its values
/// from its own file.
void restore_sources(std::vector<RunSetting>& settings, const Json& sessions) {
  if (sessions.size() < 2) return;
  for (RunSetting& setting : settings) {
    if (setting.source.find("config.yaml") == std::string::npos) continue;
    setting.source = "default";
    const Json& first = value_at(sessions[0], fields::kSettings);
    if (!first.is_array()) continue;
    for (const Json& given : first) {
      if (given.is_array() && given.size() == 3 && given[0] == setting.name && given[2].is_string()) {
        setting.source = given[2].get<std::string>();
      }
    }
  }
}

std::string folder_name(const std::string& folder) {
  std::error_code ignored;
  const fs::path path = fs::weakly_canonical(folder, ignored);
  return path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
}

absl::Status not_a_run(const std::string& folder) {
  return to_status({.exit_code = ExitCode::kUsage,
                    .id = "run.none",
                    .where = folder,
                    .problem = fs::exists(folder) ? "this is not the folder of a run" : "no such folder",
                    .expected = "a folder with metrics.jsonl, the --output_dir of a trainer"},
                   absl::StatusCode::kNotFound);
}

}  // namespace

const Json& value_at(const Json& json, std::string_view key) {
  static const Json none = nullptr;
  if (!json.is_object()) return none;
  const auto found = json.find(std::string(key));
  return found == json.end() ? none : *found;
}

std::string text_at(const Json& json, std::string_view key) {
  const Json& value = value_at(json, key);
  return value.is_string() ? value.get<std::string>() : "";
}

double number_at(const Json& json, std::string_view key, double otherwise) {
  const Json& value = value_at(json, key);
  if (value.is_number()) return value.get<double>();
  if (value == "NaN") return kUnknown;
  if (value == "Infinity" || value == "-Infinity") {
    return std::copysign(std::numeric_limits<double>::infinity(), value == "Infinity" ? 1 : -1);
  }
  return otherwise;
}

const Json& RunData::sessions() const {
  static const Json none = Json::array();
  const Json& list = value_at(run, fields::kSessions);
  return list.is_array() ? list : none;
}

const Json& RunData::last_session() const {
  static const Json none = nullptr;
  return sessions().empty() ? none : sessions().back();
}

Outcome RunData::outcome() const {
  const Json& session = last_session();
  const bool has_ended = session.is_null() || value_at(session, fields::kEnded).is_number();
  const std::string reason =
      session.is_null() ? text_at(summary, fields::kExitReason) : text_at(session, fields::kExitReason);
  if (!has_ended && is_alive(session)) return {Outcome::Kind::kRunning, "running", ""};
  if (!has_ended) return {Outcome::Kind::kFailed, "killed", "the process ended without a summary"};
  if (reason == "error" || (reason.empty() && error.is_object())) {
    return {Outcome::Kind::kFailed, "failed", text_at(error, "problem")};
  }
  if (reason.empty()) return {Outcome::Kind::kRunning, "unknown", "no summary.json"};
  if (reason == "signal") {
    const double code =
        session.is_null() ? number_at(summary, fields::kExitCode) : number_at(session, fields::kExitCode);
    return {Outcome::Kind::kStopped, "stopped", fmt::format("by signal {:.0f}", code - 128)};
  }
  return {Outcome::Kind::kGood, "finished", reason};
}

RunTimes RunData::times() const {
  RunTimes times;
  double pauses = 0, logged_saves = 0;
  for (const LogRecord& record : records) {
    if (const double* value = record.find(fields::kEvaluationSeconds); value && *value > 0) times.evaluation += *value;
    if (const double* value = record.find(fields::kSaveSeconds); value && *value > 0) logged_saves += *value;
  }
  const auto last = std::find_if(seconds.rbegin(), seconds.rend(), [](double s) { return std::isfinite(s); });
  const double logged = last == seconds.rend() ? 0 : *last;
  bool all_ended = !sessions().empty();
  for (const Json& session : sessions()) {
    const double ended = number_at(session, fields::kEnded, kUnknown),
                 started = number_at(session, fields::kStarted, kUnknown);
    all_ended = all_ended && std::isfinite(ended - started) && number_at(session, fields::kTrainingSeconds) > 0;
    times.total += std::isfinite(ended - started) ? std::max(ended - started, 0.0) : 0;
    times.training += number_at(session, fields::kTrainingSeconds);
    pauses += number_at(session, fields::kPauseSeconds);
  }
  if (!all_ended) {
    times.total = std::max(times.total, logged);
    times.training = logged;
    pauses = times.evaluation + logged_saves;
  }
  if (sessions().empty()) times.total = times.training = std::max(logged, number_at(summary, fields::kWallSeconds));
  times.saving = std::max({pauses - times.evaluation, logged_saves, 0.0});
  times.training = std::max(times.training - times.evaluation - times.saving, 0.0);
  times.total = std::max(times.total, times.training + times.evaluation + times.saving);
  return times;
}

std::string RunData::monitor() const {
  const std::string metric = text_at(value_at(last_session(), fields::kMonitor), fields::kMetric);
  return metric.empty() ? fields::kLoss : metric;
}

bool RunData::higher_is_better() const {
  return value_at(value_at(last_session(), fields::kMonitor), fields::kHigherIsBetter) == true;
}

std::string RunData::rate() const {
  const bool has_tokens = std::any_of(records.begin(), records.end(),
                                      [](const LogRecord& record) { return record.find(fields::kTokensPerSecond); });
  return has_tokens ? fields::kTokensPerSecond : fields::kSamplesPerSecond;
}

bool RunData::is_default(const RunSetting& setting) const { return setting.source.starts_with("default"); }

bool is_still_running(const Json& run) {
  if (!is_run_file(run) || run.at(fields::kSessions).empty()) return false;
  const Json& session = run.at(fields::kSessions).back();
  return !value_at(session, fields::kEnded).is_number() && number_at(session, fields::kPid) != ::getpid() &&
         is_alive(session);
}

absl::StatusOr<RunData> load_run(const std::string& folder) {
  if (!is_run(folder)) return not_a_run(folder);
  RunData data{.folder = folder, .name = folder_name(folder)};
  auto records = read_jsonl(folder + "/metrics.jsonl");
  if (!records.ok() && !absl::IsNotFound(records.status())) return records.status();
  if (records.ok()) data.records = *std::move(records);
  data.summary = read_json_file(folder + "/summary.json");
  data.run = read_json_file(folder + "/run.json");
  data.error = read_json_file(folder + "/error.json");
  data.results = read_json_file(folder + "/results/report.json");
  data.seconds = elapsed(data.records, data.sessions());
  constexpr int64_t kMostBytes = 1 << 20;
  const auto config = Fs::posix().read_file(folder + "/config.yaml", kMostBytes);
  if (config.ok()) data.settings = parse_settings(*config);
  restore_sources(data.settings, data.sessions());
  data.checkpoints = checkpoints_of(folder);
  return data;
}

absl::StatusOr<std::vector<std::string>> find_runs(const std::string& folder) {
  if (is_run(folder)) return std::vector<std::string>{folder};
  std::vector<std::string> runs;
  std::error_code ignored;
  for (fs::directory_iterator at(folder, ignored), end; !ignored && at != end; at.increment(ignored)) {
    if (is_run(at->path())) runs.push_back((fs::path(folder) / at->path().filename()).string());
  }
  if (runs.empty()) return not_a_run(folder);
  std::sort(runs.begin(), runs.end());
  return runs;
}

absl::StatusOr<std::vector<std::string>> find_all_runs(const std::vector<std::string>& folders) {
  std::vector<std::string> runs;
  for (const std::string& folder : folders) {
    TRAINKIT_ASSIGN_OR_RETURN(const std::vector<std::string> found, find_runs(folder));
    for (const std::string& run : found) {
      if (std::find(runs.begin(), runs.end(), run) == runs.end()) runs.push_back(run);
    }
  }
  return runs;
}

}  // namespace trainkit::detail
