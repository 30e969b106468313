#include "report/run_file.h"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <set>

#include "core/base/strict_json.h"
#include "core/files/new_files.h"
#include "core/machine/host_memory.h"
#include "logging/field_names.h"
#include "trainkit/core/error.h"
#include "trainkit/core/format.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/processors.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

using Json = nlohmann::ordered_json;

double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// Returns the words of this process's command line, with secrets masked.
Json command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  Json words = Json::array();
  for (std::string word; std::getline(file, word, '\0');) words.push_back(format_text(word));
  return words;
}

std::string processor_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != line.npos) return escape_text(line.substr(colon + 2));
  }
  return "";
}

/// Returns the first line of a file that ends with `suffix`; empty if there is none.
std::string git_line(const std::filesystem::path& path, const std::string& suffix = {}) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.ends_with(suffix)) return line;
  }
  return "";
}

/// Returns the commit that is checked out in the working directory; empty outside a git checkout. Reads git's files, so
/// that no process is started.
std::string git_commit() {
  std::error_code ignored;
  std::filesystem::path folder = std::filesystem::current_path(ignored);
  while (!std::filesystem::exists(folder / ".git", ignored)) {
    if (!folder.has_relative_path()) return "";
    folder = folder.parent_path();
  }
  std::filesystem::path git = folder / ".git";
  constexpr std::string_view kFolder = "gitdir: ";
  // A worktree or a submodule: a file that names the folder, which has HEAD and names the folder of the branches.
  if (const std::string line = git_line(git); line.starts_with(kFolder)) git = folder / line.substr(kFolder.size());
  const std::string shared = git_line(git / "commondir");
  const std::filesystem::path common = shared.empty() ? git : git / shared;
  std::string head = git_line(git / "HEAD");
  constexpr std::string_view kReference = "ref: ";
  if (head.starts_with(kReference)) {
    const std::string name = head.substr(kReference.size());
    head = git_line(common / name);
    if (head.empty()) head = git_line(common / "packed-refs", " " + name);
  }
  head = head.substr(0, head.find(' '));
  const bool is_hash = head.size() >= 40 && head.find_first_not_of("0123456789abcdef") == head.npos;
  return is_hash ? head : "";
}

Json host() {
  char name[HOST_NAME_MAX + 1] = "";
  ::gethostname(name, sizeof name - 1);
  utsname system{};
  ::uname(&system);
  return {{fields::kName, escape_text(name)},
          {fields::kProcessor, processor_model()},
          {fields::kProcessors, available_cpus()},
          {fields::kMemoryBytes, trainkit::host_memory().total_bytes},
          {fields::kSystem, escape_text(std::string(system.sysname) + " " + system.release)}};
}

Json settings_of(const std::string& config) {
  Json settings = Json::array();
  for (const RunSetting& setting : parse_settings(config)) {
    if (!setting.source.starts_with("default")) settings.push_back({setting.name, setting.value, setting.source});
  }
  return settings;
}

absl::Status write_run(const std::string& output_dir, const Json& run) {
  return write_file_atomically(Fs::posix(), output_dir + "/" + kRunFile,
                               run.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

/// Changes the run and the session of this process, if that is the last one of the file. Thread-safe: the log writer
/// changes it too.
absl::Status change_run(const std::string& output_dir, const std::function<void(Json& run, Json& session)>& change) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  Json run = read_json_file(output_dir + "/" + kRunFile);
  if (!run.is_object() || !run.contains(fields::kSessions) || !run[fields::kSessions].is_array() ||
      run[fields::kSessions].empty()) {
    return absl::OkStatus();
  }
  Json& session = run[fields::kSessions].back();
  if (!session.is_object() || !session.contains(fields::kPid) || session[fields::kPid] != ::getpid())
    return absl::OkStatus();
  change(run, session);
  return write_run(output_dir, run);
}

absl::Status change_session(const std::string& output_dir, const std::function<void(Json& session)>& change) {
  return change_run(output_dir, [&](Json&, Json& session) { change(session); });
}

// Note [List of a run's files]
//
// The list proves that a file is the run's own, so that a later run may replace it (app/run/run_files.h). A name is
// listed before the file has it: a process that is killed leaves no file that is not listed. The digest of a file that
// changes during the run would be out of date after a kill, so it is null until the session ends. Files that other
// processes or a rename may change never get a digest.

/// The files that this process has written to the folder of its run.
class WrittenFiles {
 public:
  static WrittenFiles& of_process() {
    static auto* const made = new WrittenFiles;
    return *made;
  }

  /// Starts the list of a session whose run.json has these names.
  void begin(const std::string& output_dir, const std::vector<std::string>& names) {
    const std::lock_guard lock(mutex_);
    output_dir_ = output_dir;
    digests_.clear();
    listed_ = {names.begin(), names.end()};
    watch_written_files(output_dir, [this](const std::string& name, const std::string& digest) { add(name, digest); });
  }

  /// Copies the digests into the list of `run`.
  void end(Json& run) {
    const std::lock_guard lock(mutex_);
    if (!run.contains(fields::kFiles)) return;
    for (const auto& [name, digest] : digests_) run[fields::kFiles][name] = digest;
    listed_.clear();  // a file that is written again gets null again
  }

 private:
  void add(const std::string& name, const std::string& digest) {
    if (name == kRunFile) return;
    std::string output_dir;
    {
      const std::lock_guard lock(mutex_);
      if (!kChangeLater.contains(name)) digests_[name] = digest;
      if (!listed_.insert(name).second) return;
      output_dir = output_dir_;
    }
    // The file itself is written even if it cannot be listed: a later run refuses to replace it.
    change_run(output_dir, [&](Json& run, Json&) {
      if (run.contains(fields::kFiles)) run[fields::kFiles][name] = nullptr;
    }).IgnoreError();
  }

  inline static const std::set<std::string> kChangeLater = {"best.safetensors", "error.json", "report.html"};
  std::mutex mutex_;
  std::string output_dir_;
  std::map<std::string, std::string> digests_;
  std::set<std::string> listed_;
};

Json monitor_json(const MonitorReport& report) {
  const StepSplit& split = report.split;
  Json json = {{fields::kSeconds, report.seconds},
               {fields::kUtilisation, report.utilisation},
               {fields::kOfGpus, report.of_gpus},
               {fields::kWait, split.wait},
               {fields::kCopy, split.copy},
               {fields::kReduce, split.reduce},
               {fields::kCompute, split.compute},
               {fields::kUpdate, split.update},
               {fields::kQueueDepth, report.queue_depth},
               {fields::kRingSize, report.ring_size},
               {fields::kHostMemoryBytes, report.resident_bytes}};
  if (report.gpu_used_bytes > 0) json[fields::kGpuMemoryBytes] = report.gpu_used_bytes;
  json[fields::kAdvice] = Json::array();
  for (const Advice& advice : report.advice) json[fields::kAdvice].push_back(advice.text);
  return json;
}

void set_monitor(Json& session, const MonitorReport& report) {
  if (report.seconds > 0) session[fields::kUtilisation] = monitor_json(report);
  if (report.real_step_bytes > 0) {
    session[fields::kMemory] = {{fields::kPredictedBytes, report.predicted_step_bytes},
                                {fields::kRealBytes, report.real_step_bytes}};
  }
}

class SessionLog final : public Logger {
 public:
  explicit SessionLog(std::string output_dir) : output_dir_(std::move(output_dir)) {}
  void log(const LogRecord&) override {}
  void log_monitor(const MonitorReport& report) override {
    status_.Update(change_session(output_dir_, [&](Json& session) { set_monitor(session, report); }));
  }
  absl::Status flush() override { return std::exchange(status_, absl::OkStatus()); }
  bool optional() const override { return true; }

 private:
  const std::string output_dir_;
  absl::Status status_;
};

}  // namespace

nlohmann::ordered_json read_json_file(const std::string& path) {
  constexpr int64_t kMostBytes = int64_t{64} << 20;
  const auto text = Fs::posix().read_file(path, kMostBytes);
  if (!text.ok() || holds_nul(*text)) return nullptr;
  Json json = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
  return json.is_discarded() ? Json(nullptr) : json;
}

std::vector<RunSetting> parse_settings(std::string_view yaml) {
  std::vector<RunSetting> settings;
  while (!yaml.empty()) {
    const std::string_view line = yaml.substr(0, yaml.find('\n'));
    yaml.remove_prefix(std::min(line.size() + 1, yaml.size()));
    const size_t colon = line.find(": "), mark = line.rfind(" # ");
    if (line.starts_with('#') || colon == line.npos || mark == line.npos || mark < colon) continue;
    std::string_view value = line.substr(colon + 2, mark - colon - 2);
    while (value.ends_with(' ')) value.remove_suffix(1);
    settings.push_back({std::string(line.substr(0, colon)), std::string(value), std::string(line.substr(mark + 3))});
  }
  return settings;
}

absl::Status begin_session(const std::string& output_dir, const SessionStart& start) {
  Json run = start.resume_step >= 0 ? read_json_file(output_dir + "/" + kRunFile) : Json(nullptr);
  if (!is_run_file(run)) {
    run = {{fields::kProgram, escape_text(start.program)},
           {fields::kFiles, Json::object()},
           {fields::kSessions, Json::array()}};
  }
  if (!start.id.empty()) run[fields::kId] = start.id;
  for (const std::string& name : start.files) {
    if (run.contains(fields::kFiles)) run[fields::kFiles][name] = nullptr;
  }
  std::error_code ignored;
  Json session = {{fields::kStarted, unix_time()},
                  {fields::kPid, ::getpid()},
                  {fields::kFirstStep, std::max<int64_t>(start.resume_step, 0)},
                  {fields::kCommand, command_line()},
                  {fields::kFolder, format_text(std::filesystem::current_path(ignored).string())},
                  {fields::kHost, host()},
                  {fields::kVersions, library_versions()},
                  {fields::kSettings, settings_of(start.config)}};
  if (const std::string commit = git_commit(); !commit.empty()) session[fields::kCommit] = commit;
  if (start.resume_step >= 0) session[fields::kChanges] = start.changes;
  run[fields::kSessions].push_back(std::move(session));
  WrittenFiles::of_process().begin(output_dir, start.files);
  return write_run(output_dir, run);
}

absl::Status write_file_list(const std::string& output_dir, const std::string& program,
                             const std::vector<std::pair<std::string, std::string>>& files) {
  Json run = {
      {fields::kProgram, escape_text(program)}, {fields::kFiles, Json::object()}, {fields::kSessions, Json::array()}};
  for (const auto& [name, digest] : files) run[fields::kFiles][name] = digest.empty() ? Json(nullptr) : Json(digest);
  return write_run(output_dir, run);
}

const Json& listed_files(const Json& run) {
  static const Json none = nullptr;
  if (!is_run_file(run)) return none;
  const auto found = run.find(fields::kFiles);
  return found != run.end() && found->is_object() ? *found : none;
}

bool is_run_file(const Json& run) {
  return run.is_object() && run.contains(fields::kProgram) && run.contains(fields::kSessions) &&
         run.at(fields::kSessions).is_array();
}

std::string make_run_id() {
  std::random_device random;  // not the run's generator, whose state must not change
  return fmt::format("{:08x}{:08x}", random(), random());
}

std::string read_run_id(const std::string& output_dir) {
  const Json run = read_json_file(output_dir + "/" + kRunFile);
  if (!is_run_file(run) || !run.contains(fields::kId) || !run[fields::kId].is_string()) return "";
  return run[fields::kId].get<std::string>();
}

absl::Status describe_session(const std::string& output_dir, const RunFacts& facts, const std::string& monitor,
                              bool higher_is_better) {
  return change_session(output_dir, [&](Json& session) {
    session[fields::kFacts] = Json::array();
    for (const auto& [name, text] : facts) session[fields::kFacts].push_back({escape_text(name), format_text(text)});
    session[fields::kMonitor] = {{fields::kMetric, escape_text(monitor)}, {fields::kHigherIsBetter, higher_is_better}};
  });
}

absl::Status end_session(const std::string& output_dir, const RunSummary& summary, const MonitorReport& monitor) {
  return change_run(output_dir, [&](Json& run, Json& session) {
    WrittenFiles::of_process().end(run);
    session[fields::kEnded] = unix_time();
    session[fields::kExitReason] = escape_text(summary.exit_reason);
    session[fields::kExitCode] = summary.exit_code;
    if (summary.wall_seconds > 0) {  // else the run failed
      session[fields::kLastStep] = summary.steps;
      session[fields::kTrainingSeconds] = summary.wall_seconds;
      session[fields::kPauseSeconds] = summary.wall_seconds * (1 - summary.effective_fraction);
    }
    set_monitor(session, monitor);
  });
}

std::unique_ptr<Logger> open_session_log(const std::string& output_dir) {
  return std::make_unique<SessionLog>(output_dir);
}

}  // namespace trainkit::detail
