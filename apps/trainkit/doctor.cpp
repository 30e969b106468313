#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "trainkit/command.h"
#include "trainkit/config/config.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/probes.h"
#include "trainkit/report/summary.h"
#include "trainkit/trainer.h"
#include "trainkit/verify.h"

namespace trainkit::tool {
namespace {

namespace fs = std::filesystem;

struct DoctorFlags {
  std::string app = {}, data_dir = {}, output_dir = "runs", report = {};
  bool json = false, quick = false, verify = false;
  double verify_seconds = 120;
  std::vector<std::string> verify_only = {};
};

/// Runs the trainer's --dry_run and adds its findings. Returns the trainer's exit code.
absl::StatusOr<int> check_data(const ConfigParser& parser, const DoctorFlags& flags,
                               const std::vector<std::string>& further, Findings& findings) {
  TRAINKIT_ASSIGN_OR_RETURN(const std::string program, find_trainer(parser, flags.app));
  std::vector<std::string> words = {program, "--dry_run", "--json"};
  if (!flags.data_dir.empty()) words.insert(words.end(), {"--data_dir", flags.data_dir});
  words.insert(words.end(), further.begin(), further.end());
  TRAINKIT_ASSIGN_OR_RETURN(const Ended ended, run_trainer(words));
  const auto answer = nlohmann::ordered_json::parse(ended.output, nullptr, false);
  if (answer.is_object()) {
    for (const auto& [name, value] : answer.items())
      findings.add("data set", name, value, value.is_string() ? value.get<std::string>() : value.dump());
  }
  const bool good = ended.code == 0;
  const size_t error = std::min(ended.errors.find("error["), ended.errors.size());
  findings.add("data set", "verdict", ended.code,
               good ? "good" : ended.errors.substr(error, ended.errors.find('\n', error) - error),
               good ? Verdict::kOk : Verdict::kWarning,
               good ? "" : fmt::format("see the output of {} --dry_run (exit code {})", program, ended.code));
  return ended.code;
}

/// Returns `folder`, or its nearest existing parent: a run creates the rest.
std::string existing_folder(const std::string& folder) {
  fs::path path = fs::absolute(folder);
  std::error_code ignored;
  while (!fs::is_directory(path, ignored) && path.has_relative_path()) path = path.parent_path();
  return path.string();
}

void add_flags(ConfigParser& parser, DoctorFlags& flags) {
  parser.add("app", &flags.app,
             {.help = "Trainer whose --dry_run checks its data set: a name or a path. Give its own flags after --.",
              .metavar = "NAME"});
  parser.add("data_dir", &flags.data_dir,
             {.help = "Folder of the data set, to measure its disk.", .path = PathKind::kInput});
  parser.add("output_dir", &flags.output_dir,
             {.help = "Output folder of runs, to measure its disk.", .path = PathKind::kInput});
  parser.add("json", &flags.json, {.help = "Print JSON instead of a table.", .flag_only = true});
  parser.add("quick", &flags.quick, {.help = "Skip the slow probes: disks, copies, all-reduce."});
  parser.add("verify", &flags.verify,
             {.help = "Check that kernels, CUDA graphs, copies, several GPUs, memory plans and checkpoints work on "
                      "every GPU. Exit code 1 if a check fails."});
  parser.add("verify_seconds", &flags.verify_seconds,
             {.help = "Seconds after which --verify starts no further check. 0: unlimited.",
              .min = 0,
              .max = 86400,
              .needs = {{"verify", {"true"}}}});
  parser.add("verify_only", &flags.verify_only,
             {.help = "Checks to run. Default: all.",
              .choices = check_names(),
              .unique_items = true,
              .needs = {{"verify", {"true"}}}});
  parser.add(
      "report", &flags.report,
      {.help = "File to write the report to, for the developers: JSON if it ends in .json, else text. Contains no "
               "names of folders or processes. Default with --verify: doctor-report.txt.",
       .path = PathKind::kOutput,
       .metavar = "FILE"});
}

/// Writes the report without the sections that name the user's folders and programs.
absl::Status write_report(const Findings& findings, const std::string& path) {
  const std::set<std::string> private_sections = {"data disk", "output disk", "data set", "gpu processes"};
  return write_file_atomically(
      Fs::posix(), path, path.ends_with(".json") ? findings.json(private_sections) : findings.table(private_sections));
}

void probe_date(Findings& findings) {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32] = "";
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", &utc);
  findings.add("report", "date", text, text);
}

void probe_machine(const DoctorFlags& flags, Findings& findings) {
  if (!flags.report.empty()) probe_date(findings);
  probe_versions(findings);
  probe_gpus(findings, flags.quick);
  probe_processors(findings);
  probe_memory(findings);
  probe_job_sizes(findings, existing_folder(flags.output_dir));
  probe_limits(findings);
  if (flags.quick) return;
  if (!flags.data_dir.empty()) probe_disk(findings, "data disk", flags.data_dir);
  probe_disk(findings, "output disk", existing_folder(flags.output_dir));
  probe_all_reduce(findings);
}

/// Runs the checks. Writes the report before the first check and after each one.
absl::StatusOr<int> verify(const DoctorFlags& flags, Findings& findings) {
  TRAINKIT_RETURN_IF_ERROR(write_report(findings, flags.report));
  const int failed =
      verify_devices(findings, {.only = flags.verify_only, .max_seconds = flags.verify_seconds, .on_result = [&] {
                                  write_report(findings, flags.report).IgnoreError();
                                }});
  return failed;
}

absl::Status checks_failed(int failed, const std::string& report) {
  return to_status(
      {.exit_code = ExitCode::kBug,
       .id = "doctor.verify",
       .problem = fmt::format("{} failed", failed == 1 ? "a check has" : fmt::format("{} checks have", failed)),
       .hint = "send " + report + " to the developers"});
}

}  // namespace

absl::StatusOr<int> doctor_command(const Arguments& arguments) {
  ConfigParser parser(
      {.name = "trainkit doctor",
       .version = library_versions()["trainkit"],
       .description =
           "Reports this machine's hardware and software for training, its speed, and problems with remedies.",
       .examples = {"trainkit doctor", "trainkit doctor --json | jq .cuda",
                    "trainkit doctor --verify --report doctor-report.json",
                    "trainkit doctor --app transformer -- --input book.txt"}});
  DoctorFlags flags;
  add_flags(parser, flags);
  TRAINKIT_ASSIGN_OR_RETURN(const bool wanted, parse_or_print(parser, arguments));
  if (!wanted) return 0;
  TRAINKIT_RETURN_IF_ERROR(parser.check_used({}));
  if (flags.verify && flags.report.empty()) flags.report = "doctor-report.txt";
  // As probe_date() lets both forms begin.
  TRAINKIT_RETURN_IF_ERROR(check_replaced(
      "--report", flags.report, {"report\n  date ", "{\n  \"report\": {\n    \"date\": "}, "a report of this command"));
  Findings findings;
  probe_machine(flags, findings);
  int failed = 0;
  if (flags.verify) {
    TRAINKIT_ASSIGN_OR_RETURN(failed, verify(flags, findings));
  }
  int code = 0;
  if (!flags.app.empty()) {
    TRAINKIT_ASSIGN_OR_RETURN(code, check_data(parser, flags, arguments.program, findings));
  }
  if (!flags.report.empty()) TRAINKIT_RETURN_IF_ERROR(write_report(findings, flags.report));
  print(flags.json ? findings.json() : findings.table() + "\n" + findings.verdict() + "\n");
  if (failed > 0) return checks_failed(failed, flags.report);
  return code;
}

}  // namespace trainkit::tool
