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

std::vector<SessionStartTime> starts_of(const Json& sessions) {
  std::vector<SessionStartTime> starts;
  for (const Json& session : sessions)
    starts.push_back({number_at(session, fields::kStarted, kUnknown), number_at(session, fields::kFirstStep)});
  return starts;
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
  times.evaluation = history.evaluation_seconds();
  double pauses = 0;
  const double logged_saves = history.save_seconds(), logged = history.last_seconds();
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
  return history.has_tokens() ? fields::kTokensPerSecond : fields::kSamplesPerSecond;
}

bool RunData::is_default(const RunSetting& setting) const { return setting.source.starts_with("default"); }

bool is_still_running(const Json& run) {
  if (!is_run_file(run) || run.at(fields::kSessions).empty()) return false;
  const Json& session = run.at(fields::kSessions).back();
  return !value_at(session, fields::kEnded).is_number() && number_at(session, fields::kPid) != ::getpid() &&
         is_alive(session);
}

absl::StatusOr<RunData> load_run(const std::string& folder) {
  RunData data{.folder = folder};
  TRAINKIT_RETURN_IF_ERROR(update_run(data));
  return data;
}

absl::Status update_run(RunData& data) {
  const std::string& folder = data.folder;
  if (!is_run(folder)) return not_a_run(folder);
  data.name = folder_name(folder);
  data.run = read_json_file(folder + "/run.json");
  auto starts = starts_of(data.sessions());
  if (data.history.sessions() != starts) data.history = RunHistory(std::move(starts));
  const absl::Status read = data.history.read(folder + "/metrics.jsonl");
  if (absl::IsNotFound(read)) {
    data.history = RunHistory(data.history.sessions());
  } else {
    TRAINKIT_RETURN_IF_ERROR(read);
  }
  data.summary = read_json_file(folder + "/summary.json");
  data.error = read_json_file(folder + "/error.json");
  data.results = read_json_file(folder + "/results/report.json");
  constexpr int64_t kMostBytes = 1 << 20;
  const auto config = Fs::posix().read_file(folder + "/config.yaml", kMostBytes);
  data.settings = config.ok() ? parse_settings(*config) : std::vector<RunSetting>();
  restore_sources(data.settings, data.sessions());
  data.checkpoints = checkpoints_of(folder);
  return absl::OkStatus();
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
