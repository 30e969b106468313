#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "trainkit/command.h"
#include "trainkit/config/config.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/logging/summary.h"
#include "trainkit/probes.h"
#include "trainkit/trainer.h"

namespace trainkit::tool {
namespace {

namespace fs = std::filesystem;

struct DoctorFlags {
  std::string app = {}, data_dir = {}, output_dir = "runs";
  bool json = false, quick = false;
};

/// The trainer's own checks, without a step. Returns its exit code.
absl::StatusOr<int> check_data(const ConfigParser& parser, const DoctorFlags& flags,
                               const std::vector<std::string>& further, Report& report) {
  std::vector<std::string> words = {"--dry_run", "--json"};
  if (!flags.data_dir.empty()) words.insert(words.end(), {"--data_dir", flags.data_dir});
  words.insert(words.end(), further.begin(), further.end());
  TRAINKIT_ASSIGN_OR_RETURN(const Ended ended, run_trainer(parser, flags.app, words));
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
  DoctorFlags flags;
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
