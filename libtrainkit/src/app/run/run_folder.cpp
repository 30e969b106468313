#include "trainkit/app/run_folder.h"

#include <absl/strings/str_split.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <numeric>

#include "app/run/run_files.h"
#include "logging/field_names.h"
#include "logging/record_reader.h"
#include "logging/run_log.h"
#include "report/run_file.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/io/table.h"
#include "trainkit/report/summary.h"

namespace trainkit {
namespace {

namespace fields = detail::fields;

/// Returns the values of the last record of `split`, without measured times. Empty if it is of a step before
/// `first_step`.
Metrics last_logged(const std::string& path, std::string_view split, int64_t first_step) {
  Metrics values;
  const auto last = detail::last_record(path, split);
  if (!last.ok() || !*last || (*last)->step < first_step) return values;
  values.insert((*last)->values.begin(), (*last)->values.end());
  values.erase(fields::kEvaluationSeconds);
  values.erase(fields::kTime);
  return values;
}

}  // namespace

absl::StatusOr<std::string> results_dir(const RunOptions& run) {
  std::string path = run.output_dir + "/results";
  TRAINKIT_RETURN_IF_ERROR(Fs::posix().create_directories(path).status());
  return path;
}

absl::StatusOr<std::unique_ptr<RunFolder>> RunFolder::open(const ConfigParser& parser, const RunOptions& run,
                                                           const Placement& placement, const std::string& program,
                                                           const std::vector<std::string>& files) {
  if (!placement.is_first()) {
    return std::unique_ptr<RunFolder>(new RunFolder("", placement.group, std::make_unique<RunLogger>()));
  }
  int64_t resume_step = -1;
  if (!run.resume.empty()) {
    TRAINKIT_ASSIGN_OR_RETURN(const CheckpointPath checkpoint, resumed_checkpoint(run));
    resume_step = checkpoint.step;
  }
  TRAINKIT_RETURN_IF_ERROR(Fs::posix().create_directories(run.output_dir).status());
  const std::string config = parser.to_yaml(), id = detail::id_of_run(run, resume_step >= 0);
  // First, since run.json proves that the other files are the run's own.
  const detail::SessionStart start{program, config, resume_step, parser.changes(), id, detail::first_files(run, files)};
  TRAINKIT_RETURN_IF_ERROR(detail::begin_session(run.output_dir, start));
  const Settings settings = parser.settings();
  TRAINKIT_ASSIGN_OR_RETURN(auto logger,
                            open_run_log({.output_dir = run.output_dir,
                                          .console = stdout,
                                          .use_tensorboard = run.use_tensorboard,
                                          .tensorboard_dir = run.tensorboard_dir,
                                          .run_id = id,
                                          .settings = {settings.begin(), settings.end()},
                                          .use_wandb = run.use_wandb,
                                          .wandb = {.project = program, .config = {settings.begin(), settings.end()}},
                                          .resume_step = resume_step}));
  TRAINKIT_RETURN_IF_ERROR(write_file_atomically(Fs::posix(), run.output_dir + "/config.yaml", config));
  logger->add(detail::open_session_log(run.output_dir));
  return std::unique_ptr<RunFolder>(new RunFolder(run.output_dir, placement.group, std::move(logger)));
}

void RunFolder::add_bad_line(std::string line) {
  const size_t end_of_row = line.find(',', line.find(',') + 1);  // "train,17"
  if (bad_rows_.insert(line.substr(0, end_of_row)).second) bad_samples_.push_back(std::move(line));
}

void RunFolder::add_bad_samples(const std::string& part, const std::vector<BadSample>& samples) {
  for (const BadSample& sample : samples) {
    add_bad_line(fmt::format("{},{},{},{},{}\n", part, sample.index, sample.epoch, csv_field(sample.name),
                             csv_field(sample.cause)));
  }
}

absl::StatusOr<Metrics> RunFolder::write_bad_samples() {
  const std::string mine(fmt::format("{}", fmt::join(bad_samples_, std::string(1, '\0'))));  // no field contains it
  for (int64_t rank = 1; group_ && rank < group_->world_size(); ++rank) {
    TRAINKIT_ASSIGN_OR_RETURN(const std::string theirs, group_->broadcast_text(mine, rank, "gathering bad samples"));
    for (const absl::string_view line : absl::StrSplit(theirs, '\0', absl::SkipEmpty()))
      add_bad_line(std::string(line));
  }
  Metrics counts;
  if (!is_first() || bad_samples_.empty()) return counts;
  std::string text = "part,index,epoch,name,cause\n";
  for (const std::string& line : bad_samples_) {
    text += line;
    ++counts[fmt::format("{}.{}", fields::kBadSamples, line.substr(0, line.find(',')))];
  }
  TRAINKIT_RETURN_IF_ERROR(write_file_atomically(Fs::posix(), path_ + "/bad_samples.csv", text));
  std::string parts;
  for (const auto& [name, count] : counts) {
    parts += fmt::format("{}{} {:.0f}", parts.empty() ? "" : ", ", name.substr(name.find('.') + 1), count);
  }
  logger_->print(fmt::format("rows that could not be read: {}; {}/bad_samples.csv lists them", parts, path_));
  return counts;
}

absl::StatusOr<int> RunFolder::finish(const TrainerResult& result, const Metrics& scores,
                                      const std::vector<std::string>& warnings) {
  if (result.monitor.seconds > 0) logger_->print("monitor: " + describe(result.monitor));
  TRAINKIT_ASSIGN_OR_RETURN(const Metrics bad_samples, write_bad_samples());
  TRAINKIT_RETURN_IF_ERROR(logger_->close());
  const auto named = [](const Metrics& metrics) {
    std::vector<std::pair<std::string, double>> list;
    for (const auto& [name, value] : metrics) list.emplace_back("val_" + name, value);
    return list;
  };
  RunSummary summary{.exit_reason = to_string(result.reason),
                     .exit_code = result.signal == 0 ? 0 : 128 + result.signal,
                     .steps = result.steps,
                     .epochs = result.epochs,
                     .wall_seconds = result.wall_seconds,
                     .effective_fraction = result.effective_fraction,
                     .predicted_memory_bytes = result.predicted_memory_bytes,
                     .real_memory_bytes = result.real_memory_bytes,
                     .predicted_reserved_bytes = result.predicted_reserved_bytes,
                     .real_reserved_bytes = result.real_reserved_bytes,
                     .final_metrics = {},
                     .best_metrics = named(result.best_evaluation),
                     .best_step = result.best_evaluation.empty() ? -1 : result.best_step,
                     .scores = {scores.begin(), scores.end()},
                     .warnings = warnings,
                     .versions = library_versions()};
  summary.scores.insert(summary.scores.end(), bad_samples.begin(), bad_samples.end());
  if (!is_first()) return summary.exit_code;
  // A resumed run that had taken its last step has its final metrics only in its log.
  const bool trained = result.steps_run > 0;
  const std::string log = path_ + "/metrics.jsonl";
  summary.final_metrics = named(result.evaluation.empty() && !trained ? last_logged(log, "val", 0) : result.evaluation);
  const Metrics training = trained ? Metrics{{fields::kLoss, result.loss}} : last_logged(log, "train", result.steps);
  if (const auto loss = training.find(fields::kLoss); loss != training.end()) {
    summary.final_metrics.emplace_back("train_loss", loss->second);
  }
  TRAINKIT_RETURN_IF_ERROR(write_summary(path_, summary));
  TRAINKIT_RETURN_IF_ERROR(detail::end_session(path_, summary, result.monitor));
  return summary.exit_code;
}

}  // namespace trainkit
