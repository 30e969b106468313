#include "app/run/resume.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "logging/field_names.h"
#include "report/report_data.h"
#include "report/run_file.h"
#include "trainkit/app/run_folder.h"
#include "trainkit/core/data_error.h"
#include "trainkit/core/error.h"
#include "trainkit/core/state_dict.h"
#include "trainkit/core/status.h"
#include "trainkit/report/summary.h"
#include "trainkit/train/checkpoint.h"

namespace trainkit {
namespace {

namespace fs = std::filesystem;
namespace fields = detail::fields;

constexpr char kDataKey[] = "config.data";
constexpr char kBadEvaluationsKey[] = "trainer.bad_evaluations";

/// Returns the configuration file of a run folder; "" if it has none.
std::string config_of(const std::string& folder) {
  std::error_code ignored;
  const fs::path file = fs::path(folder) / "config.yaml";
  return fs::is_regular_file(file, ignored) ? file.string() : "";
}

}  // namespace

absl::StatusOr<CheckpointPath> resumed_checkpoint(const RunOptions& run) {
  auto found = resolve_checkpoint(run.resume, run.output_dir);
  auto error = error_of(found.status());
  if (!error || error->id != "ckpt.none") return found;
  error->field = "--resume";
  error->got = run.resume;
  error->expected = "latest, " + error->expected;
  return to_status(*error, found.status().code());
}

absl::StatusOr<std::optional<std::string>> earlier_file(const RunOptions& run, const std::string& name) {
  if (run.resume.empty()) return std::nullopt;
  TRAINKIT_ASSIGN_OR_RETURN(const CheckpointPath checkpoint, resumed_checkpoint(run));
  std::string path = checkpoint.run_folder() + "/" + name;
  if (!std::filesystem::exists(path)) return std::nullopt;
  return path;
}

absl::Status check_data(const RunOptions& run, const std::string& digest) {
  if (run.resume.empty() || digest.empty()) return absl::OkStatus();
  TRAINKIT_ASSIGN_OR_RETURN(const CheckpointPath checkpoint, resumed_checkpoint(run));
  TRAINKIT_ASSIGN_OR_RETURN(const StateDict state, load_checkpoint_state(checkpoint));
  const auto saved = get_state<std::string>(state, kDataKey);
  if (!saved.ok() || *saved == digest) return absl::OkStatus();
  return data_error("data.changed", {.file = checkpoint.path()}, "the run was trained on other data", digest, *saved,
                    "give the run its own data, or start a new run in another --output_dir");
}

namespace detail {

/// Whether a checkpoint belongs to the run in --output_dir.
static bool is_in(const CheckpointPath& checkpoint, const RunOptions& run) {
  return fs::weakly_canonical(checkpoint.run_folder()) == fs::weakly_canonical(run.output_dir);
}

bool is_new_in_its_folder(const RunOptions& run) {
  if (run.resume.empty()) return true;
  const auto checkpoint = resolve_checkpoint(run.resume, run.output_dir);
  return checkpoint.ok() && !is_in(*checkpoint, run);  // the trainer reports a checkpoint that is not there
}

void continue_with_own_settings(ConfigParser& parser, const RunOptions& run) {
  const auto find = [&parser, &run]() -> absl::StatusOr<std::string> {
    if (run.resume.empty()) return "";
    if (run.resume == "latest") return config_of(run.output_dir);
    TRAINKIT_ASSIGN_OR_RETURN(const CheckpointPath checkpoint, resumed_checkpoint(run));
    const std::string config = config_of(checkpoint.run_folder());
    if (!config.empty()) parser.set_defaults({{"output_dir", checkpoint.run_folder()}}, "the run to continue");
    return config;
  };
  parser.set_run_file(find, {"output_dir", "resume", "overwrite", "dry_run"});
  parser.fix({"seed", "weight_decay"});  // the optimizer's state has the second
}

absl::StatusOr<Request> explain_settings_error(const absl::StatusOr<Request>& parsed, const std::string& program) {
  const auto error = error_of(parsed.status());
  const size_t end = error ? error->where.find("/config.yaml") : std::string::npos;
  if (end == std::string::npos) return parsed;
  const std::string folder = error->where.substr(0, end);
  const std::string made_by = text_at(read_json_file(folder + "/run.json"), fields::kProgram);
  if (made_by.empty() || made_by == program) return parsed;
  return to_status({.exit_code = ExitCode::kUsage,
                    .id = "run.program",
                    .where = folder,
                    .problem = "is a run of another program",
                    .got = made_by,
                    .expected = "a run of " + program});
}

/// Returns the version of LibTorch in the session that wrote the checkpoint, from run.json of its run; "" if unknown.
static std::string libtorch_of(const CheckpointPath& checkpoint) {
  const auto run = read_json_file(checkpoint.run_folder() + "/" + kRunFile);
  std::string version;
  if (!is_run_file(run)) return version;
  for (bool is_first = true; const auto& session : run.at(fields::kSessions)) {
    // A session that continued from this checkpoint, such as this one, did not write it.
    const bool wrote = is_first || number_at(session, fields::kFirstStep) < static_cast<double>(checkpoint.step);
    if (wrote) version = text_at(value_at(session, fields::kVersions), "libtorch");
    is_first = false;
  }
  return version;
}

RunFacts describe_resume(const ConfigParser& parser, const RunOptions& run) {
  if (run.resume.empty()) return {};
  const auto checkpoint = resumed_checkpoint(run);
  if (!checkpoint.ok()) return {};  // the trainer reports it
  RunFacts facts = {{"resumes", checkpoint->path()}};
  const auto latest = resolve_checkpoint("latest", run.output_dir);
  if (latest.ok() && is_in(*checkpoint, run) && latest->step > checkpoint->step) {
    facts.emplace_back("", "discards the steps " + std::to_string(checkpoint->step + 1) + " to " +
                               std::to_string(latest->step) + " of this run");
  }
  const std::string before = libtorch_of(*checkpoint), now = library_versions()["libtorch"];
  if (!before.empty() && before != now) {
    facts.emplace_back("", "LibTorch " + escape_text(before) + " wrote it, " + now +
                               " continues: results may differ by rounding from those of one version");
  }
  for (const std::string& change : parser.changes()) facts.emplace_back("", "changed " + change);
  return facts;
}

std::string describe_end(const RunOptions& run, const TrainerOptions& options, int64_t batches_per_epoch) {
  if (run.resume.empty()) return "";
  const auto checkpoint = resumed_checkpoint(run);
  if (!checkpoint.ok() || !is_in(*checkpoint, run)) return "";
  const auto summary = read_json_file(run.output_dir + "/summary.json");
  const auto step = static_cast<double>(checkpoint->step);
  const int64_t planned = planned_steps(batches_per_epoch, options);
  if (planned > 0 && checkpoint->step >= planned && number_at(summary, fields::kSteps, -1) > step) {
    return "nothing to do: step " + std::to_string(checkpoint->step) + " of the run in " + run.output_dir +
           " is at or after the last step of these settings; its later steps are kept";
  }
  if (number_at(summary, fields::kExitCode, -1) != 0 || number_at(summary, fields::kSteps, -1) != step) return "";
  if (planned > 0 && checkpoint->step >= planned) {
    return "the run in " + run.output_dir + " is finished; to continue it, raise --epochs or --max_steps";
  }
  const bool stopped = text_at(summary, fields::kExitReason) == to_string(ExitReason::kEarlyStopping);
  const auto state = load_checkpoint_state(*checkpoint);
  const auto bad = state.ok() ? get_state<int64_t>(*state, kBadEvaluationsKey) : state.status();
  if (!stopped || !bad.ok() || options.early_stopping == 0 || *bad < options.early_stopping) return "";
  return "the run in " + run.output_dir + " is finished by early stopping; to continue it, raise --early_stopping";
}

}  // namespace detail
}  // namespace trainkit
