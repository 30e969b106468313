#include <fcntl.h>
#include <fmt/ranges.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "trainkit/command.h"
#include "trainkit/config/config.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/logging/summary.h"
#include "trainkit/probes.h"

namespace trainkit::tool {
namespace {

namespace fs = std::filesystem;

struct Flags {
  std::string app = {}, data_dir = {}, output_dir = "runs";
  bool json = false, quick = false;
};

struct Ended {
  int code = 0;
  std::string output = {}, errors = {};
};

/// Runs a program without a shell.
absl::StatusOr<Ended> run_program_and_read(std::vector<std::string> words) {
  int pipe[2];
  if (pipe2(pipe, O_CLOEXEC) != 0) return absl::InternalError("no pipe");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, pipe[1], 1);
  const int errors = memfd_create("stderr", MFD_CLOEXEC);
  posix_spawn_file_actions_adddup2(&actions, errors, 2);
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t pid = -1;
  const int failed = posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(pipe[1]);
  Ended ended;
  char buffer[65536];
  for (ssize_t size = 0; failed == 0 && (size = read(pipe[0], buffer, sizeof buffer)) > 0;)
    ended.output.append(buffer, static_cast<size_t>(size));
  close(pipe[0]);
  if (failed == 0) {
    int status = 0;
    waitpid(pid, &status, 0);
    ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : static_cast<int>(ExitCode::kBug);
    const ssize_t size = pread(errors, buffer, sizeof buffer, 0);
    ended.errors.assign(buffer, static_cast<size_t>(std::max<ssize_t>(size, 0)));
  }
  close(errors);
  if (failed != 0) {
    return to_status({.exit_code = ExitCode::kUsage,
                      .id = "doctor.app",
                      .where = words[0],
                      .problem = std::string("cannot be started: ") + std::strerror(failed)});
  }
  return ended;
}

/// The trainers beside this program, by the names that --app takes.
std::vector<std::string> apps() {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(program_folder(), ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("trainkit-")) names.push_back(name.substr(9));
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// The trainer's own checks, without a step. Returns its exit code.
absl::StatusOr<int> check_data(const ConfigParser& parser, const Flags& flags, const std::vector<std::string>& further,
                               Report& report) {
  const std::vector<std::string> known = apps();
  if (std::find(known.begin(), known.end(), flags.app) == known.end()) {
    const std::string nearest = nearest_name(flags.app, known);
    return parser.invalid("app", "no such trainer beside this program", fmt::format("{}", fmt::join(known, ", ")),
                          nearest.empty() ? "" : "did you mean --app " + nearest + "?");
  }
  std::vector<std::string> words = {program_folder() + "/trainkit-" + flags.app, "--dry_run", "--json"};
  if (!flags.data_dir.empty()) words.insert(words.end(), {"--data_dir", flags.data_dir});
  words.insert(words.end(), further.begin(), further.end());
  TRAINKIT_ASSIGN_OR_RETURN(const Ended ended, run_program_and_read(words));
  const auto answer = nlohmann::ordered_json::parse(ended.output, nullptr, false);
  if (answer.is_object()) {
    for (const auto& [name, value] : answer.items())
      report.add("data set", name, value, value.is_string() ? value.get<std::string>() : value.dump());
  }
  const bool good = ended.code == 0;
  const size_t error = std::min(ended.errors.find("error["), ended.errors.size());
  report.add("data set", "verdict", ended.code,
             good ? "good" : ended.errors.substr(error, ended.errors.find('\n', error) - error),
             good ? Verdict::kOk : Verdict::kWarning,
             good ? "" : fmt::format("trainkit-{} --dry_run tells the rest (exit code {})", flags.app, ended.code));
  return ended.code;
}

/// `folder`, or the nearest one above it that is there: a run will make the rest.
std::string existing_folder(const std::string& folder) {
  fs::path path = fs::absolute(folder);
  std::error_code ignored;
  while (!fs::is_directory(path, ignored) && path.has_relative_path()) path = path.parent_path();
  return path.string();
}

}  // namespace

absl::StatusOr<int> doctor_command(const Arguments& arguments) {
  ConfigParser parser(
      {.name = "trainkit doctor",
       .version = library_versions()["trainkit"],
       .description = "Says what this machine has for training, how fast it is, and what is wrong with it.",
       .examples = {"trainkit doctor", "trainkit doctor --json | jq .cuda",
                    "trainkit doctor --app transformer -- --input book.txt"}});
  Flags flags;
  parser.add("app", &flags.app,
             {.help = "Trainer whose data set to check, by its own --dry_run; what follows -- are its flags.",
              .metavar = "NAME"});
  parser.add("data_dir", &flags.data_dir, {.help = "Data set: its disk is measured.", .path = PathKind::kInput});
  parser.add("output_dir", &flags.output_dir,
             {.help = "Where runs go: its disk is measured.", .path = PathKind::kInput});
  parser.add("json", &flags.json, {.help = "JSON instead of a table.", .flag_only = true});
  parser.add("quick", &flags.quick, {.help = "Leaves out what takes seconds: disks, copies, all-reduce."});
  TRAINKIT_ASSIGN_OR_RETURN(const bool wanted, parse_or_print(parser, arguments));
  if (!wanted) return 0;
  Report report;
  probe_versions(report);
  probe_gpus(report, flags.quick);
  probe_processors(report);
  probe_memory(report);
  probe_limits(report);
  if (!flags.quick) {
    if (!flags.data_dir.empty()) probe_disk(report, "data disk", flags.data_dir);
    probe_disk(report, "output disk", existing_folder(flags.output_dir));
    probe_all_reduce(report);
  }
  int code = 0;
  if (!flags.app.empty()) {
    TRAINKIT_ASSIGN_OR_RETURN(code, check_data(parser, flags, arguments.program, report));
  }
  print(flags.json ? report.json() : report.table());
  return code;
}

}  // namespace trainkit::tool
