// trainkit verify-resume: checks that an interrupted and resumed run ends with the same bytes as an uninterrupted one.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>

#include "trainkit/command.h"
#include "trainkit/config/config.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/interrupted_run.h"
#include "trainkit/report/summary.h"
#include "trainkit/run_comparison.h"

namespace trainkit::tool {
namespace {

namespace fs = std::filesystem;

struct VerifyResumeFlags {
  int64_t kills = 3;
  uint64_t seed = 0;
  std::string signal = "SIGKILL";
  std::vector<std::string> vary = {}, ignore = {};
  std::string folder = {};
  bool keep = false;
};

void add_flags(ConfigParser& parser, VerifyResumeFlags& flags) {
  parser.add("kills", &flags.kills,
             {.help = "Number of interruptions before the last checkpoint, over as many runs as needed.",
              .min = 1,
              .max = 1e6});
  parser.add("seed", &flags.seed, {.help = "Random seed of the interruption times and of --vary."});
  parser.add(
      "signal", &flags.signal,
      {.help = "Signal to send. SIGKILL kills all processes; SIGTERM and SIGINT save and stop; SIGUSR1 saves and "
               "continues.",
       .choices = {"SIGKILL", "SIGTERM", "SIGINT", "SIGUSR1"}});
  parser.add("vary", &flags.vary,
             {.help = "Flags that get another value at each start of the interrupted runs: num_workers=0:2:4.",
              .metavar = "FLAG=A:B"});
  parser.add(
      "ignore", &flags.ignore,
      {.help = "Further values of metrics.jsonl that may differ. Rates, fractions, seconds and bytes always may.",
       .metavar = "NAME"});
  parser.add("folder", &flags.folder,
             {.help = "Folder for the runs; must be empty. Default: a temporary folder.",
              .path = PathKind::kOutput,
              .metavar = "DIR"});
  parser.add("keep", &flags.keep, {.help = "Keep the folders of the runs. They are always kept after a failure."});
}

absl::StatusOr<InterruptOptions> options_of(const ConfigParser& parser, const VerifyResumeFlags& flags,
                                            const std::vector<std::string>& program) {
  if (program.empty()) {
    return to_status({.exit_code = ExitCode::kUsage,
                      .id = "cli.missing",
                      .field = "program",
                      .problem = "none given",
                      .hint = "give it after two dashes: trainkit verify-resume -- program --its_flag"});
  }
  for (const std::string& word : program) {
    const std::string name = word.substr(0, word.find('='));
    for (const char* taken : {"--output_dir", "--output-dir", "--resume"}) {
      if (name != taken) continue;
      return to_status({.exit_code = ExitCode::kUsage,
                        .id = "cli.program",
                        .field = taken,
                        .problem = "is set by verify-resume itself",
                        .hint = "remove it; --folder sets the folder of the runs"});
    }
  }
  const std::map<std::string, int> numbers = {
      {"SIGKILL", SIGKILL}, {"SIGTERM", SIGTERM}, {"SIGINT", SIGINT}, {"SIGUSR1", SIGUSR1}};
  InterruptOptions options{.program = program, .signal = numbers.at(flags.signal), .seed = flags.seed};
  for (const std::string& text : flags.vary) {
    const size_t equals = text.find('=');
    std::vector<std::string> values;
    for (size_t at = equals; at != std::string::npos; at = text.find(':', at + 1)) {
      values.push_back(text.substr(at + 1, text.find(':', at + 1) - at - 1));
    }
    if (equals == 0 || values.empty())
      return parser.invalid("vary", "not a flag with values", "such as num_workers=0:2:4");
    options.varied.emplace_back(text.substr(0, equals), std::move(values));
  }
  return options;
}

void log_line(const std::string& line) { std::fputs((line + "\n").c_str(), stderr); }

/// Returns the folder of the runs: that of --folder, or `temporary`.
absl::StatusOr<std::string> folder_of(const VerifyResumeFlags& flags, std::optional<TemporaryFolder>& temporary) {
  if (flags.folder.empty()) {
    TRAINKIT_ASSIGN_OR_RETURN(temporary, TemporaryFolder::create());
    return temporary->path();
  }
  std::error_code error;
  if (Fs::posix().create_directories(flags.folder).ok() && fs::is_empty(flags.folder, error) && !error) {
    return flags.folder;
  }
  return to_status({.exit_code = ExitCode::kUsage,
                    .id = "resume.folder",
                    .where = flags.folder,
                    .field = "--folder",
                    .problem = "is not an empty, writable folder"});
}

/// Collects the comparisons of all interrupted runs, with the first difference of each kind.
class Findings {
 public:
  /// Folder of the first run that differs; empty if none does.
  const std::string& differing() const { return differing_; }

  void add(const std::string& run, const std::vector<Compared>& compared) {
    ++runs_;
    if (rows_.empty()) rows_.resize(compared.size());
    for (size_t i = 0; i < compared.size(); ++i) {
      rows_[i].what = compared[i].what;
      rows_[i].amount = compared[i].amount;
      if (compared[i].difference.empty()) continue;
      if (differing_.empty()) differing_ = run;
      if (rows_[i].difference.empty())
        rows_[i].difference = fs::path(run).filename().string() + ", " + compared[i].difference;
    }
  }

  std::string table() const {
    std::string text =
        fmt::format("{:<16} {:<48} {}\n", "compared", fmt::format("in each of {} runs", runs_), "differs");
    for (const Compared& row : rows_) {
      text += fmt::format("{:<16} {:<48} {}\n", row.what, row.amount.empty() ? "none" : row.amount,
                          row.difference.empty() ? "nowhere" : row.difference);
    }
    return text;
  }

 private:
  int64_t runs_ = 0;
  std::vector<Compared> rows_;
  std::string differing_;
};

absl::StatusOr<int> verify(const VerifyResumeFlags& flags, const InterruptOptions& options, const std::string& folder) {
  InterruptedRuns runs(options);
  const std::string reference = folder + "/undisturbed";
  log_line("uninterrupted run: " + fmt::format("{}", fmt::join(options.program, " ")));
  TRAINKIT_ASSIGN_OR_RETURN(const RunTimes times, runs.run_uninterrupted(reference));
  log_line(fmt::format("{} steps in {:.1f} s, first checkpoint after {:.1f} s", times.steps, times.end,
                       times.first_checkpoint));
  Findings findings;
  // A run may finish its last step before the drawn time. Stop if that happens 20 times in a row: the run is too short.
  for (int64_t fruitless = 0; runs.counts().interruptions < flags.kills;) {
    const int64_t before = runs.counts().interruptions;
    const std::string run = fmt::format("{}/interrupted-{}", folder, runs.counts().runs + 1);
    TRAINKIT_RETURN_IF_ERROR(runs.run_interrupted(run, times, flags.kills - before));
    TRAINKIT_ASSIGN_OR_RETURN(const auto compared, compare_runs(reference, run, flags.ignore));
    findings.add(run, compared);
    log_line(fmt::format("run {} ended: {} of {} interruptions{}", runs.counts().runs, runs.counts().interruptions,
                         flags.kills, findings.differing() == run ? ", differs" : ""));
    if (findings.differing() != run && !flags.keep) fs::remove_all(run);
    fruitless = runs.counts().interruptions > before ? 0 : fruitless + 1;
    if (fruitless < 20) continue;
    return to_status({.exit_code = ExitCode::kUsage,
                      .id = "resume.short",
                      .problem = "20 runs in a row saved their last checkpoint before they could be interrupted",
                      .hint = "use a longer run or a smaller --save_every"});
  }
  const InterruptCounts& counts = runs.counts();
  print(fmt::format(
      "{} x {} in {} runs ({} while a run was starting again, {} while it saved) and {} after a run's last checkpoint, "
      "{} starts\n\n{}",
      counts.interruptions, flags.signal, counts.runs, counts.while_starting, counts.while_saving,
      counts.after_training, counts.starts, findings.table()));
  if (findings.differing().empty()) return 0;
  return to_status({.exit_code = ExitCode::kWeights,
                    .id = "resume.differs",
                    .where = findings.differing(),
                    .problem = "an interrupted run differs from the uninterrupted one",
                    .hint = "compare it with " + reference});
}

}  // namespace

absl::StatusOr<int> verify_resume_command(const Arguments& arguments) {
  ConfigParser parser(
      {.name = "trainkit verify-resume",
       .version = library_versions()["trainkit"],
       .description =
           "Runs a trainer once without interruptions, then with interruptions at random times, each followed by a\n"
           "resume, and compares the output folders byte for byte.\n"
           "Usage: trainkit verify-resume [flags] -- program [its flags]. It adds --output_dir and --resume latest.\n"
           "Exit code: 0 no difference, 5 a difference, else that of a program that failed.",
       .examples = {"trainkit verify-resume -- trainkit-transformer --input book.txt --max_steps 200 --save_every 20",
                    "trainkit verify-resume --kills 200 --vary num_workers=0:2:4 -- trainkit-hsi --cube a.mat --gt "
                    "b.mat --save_every 10",
                    "trainkit verify-resume --signal SIGTERM -- trainkit launch --nproc_per_node 2 -- "
                    "trainkit-transformer --input book.txt --max_steps 200 --save_every 20"}});
  VerifyResumeFlags flags;
  add_flags(parser, flags);
  TRAINKIT_ASSIGN_OR_RETURN(const bool wanted, parse_or_print(parser, arguments));
  if (!wanted) return 0;
  TRAINKIT_ASSIGN_OR_RETURN(const InterruptOptions options, options_of(parser, flags, arguments.program));
  std::optional<TemporaryFolder> temporary;
  TRAINKIT_ASSIGN_OR_RETURN(const std::string folder, folder_of(flags, temporary));
  absl::StatusOr<int> code = verify(flags, options, folder);
  if (temporary && (flags.keep || !code.ok())) temporary->keep();
  if (flags.keep) log_line("the runs are in " + folder);
  return code;
}

}  // namespace trainkit::tool
