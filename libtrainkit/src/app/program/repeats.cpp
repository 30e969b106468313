#include "app/program/repeats.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "logging/field_names.h"
#include "report/report_data.h"
#include "report/run_file.h"
#include "trainkit/app/app.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/report/summary.h"

namespace trainkit::detail {
namespace {

using Json = nlohmann::ordered_json;

/// Entries of summary.json that are no scores.
constexpr std::string_view kNoScores[] = {fields::kExitCode,
                                          fields::kSteps,
                                          fields::kEpochs,
                                          fields::kWallSeconds,
                                          fields::kEffectiveFraction,
                                          fields::kFinal,
                                          fields::kBest,
                                          fields::kBestStep,
                                          fields::kVersions,
                                          fields::kPredictedMemoryBytes,
                                          fields::kRealMemoryBytes,
                                          fields::kPredictedReservedBytes,
                                          fields::kRealReservedBytes,
                                          fields::kBadSamples};

/// Adds the numbers in a JSON object, also "NaN" and "Infinity". Those of nested objects get the object's name and a
/// dot before theirs.
void add_numbers(const Json& object, const std::string& prefix, Metrics& numbers) {
  constexpr double kAbsent = 0;
  for (const auto& [name, value] : object.items()) {
    if (value.is_object()) {
      add_numbers(value, prefix + name + ".", numbers);
    } else if (value.is_number() || value == "NaN" || value == "Infinity" || value == "-Infinity") {
      numbers[prefix + name] = number_at(object, name, kAbsent);
    }
  }
}

Metrics numbers_of(const Json& object) {
  Metrics numbers;
  if (object.is_object()) add_numbers(object, "", numbers);
  return numbers;
}

Metrics scores_of(Json summary) {
  for (const std::string_view name : kNoScores) summary.erase(std::string(name));
  return numbers_of(summary);
}

absl::StatusOr<Json> read_summary(const std::string& folder) {
  const std::string path = folder + "/summary.json";
  Json summary = read_json_file(path);
  if (summary.is_object()) return summary;
  return to_status({.exit_code = ExitCode::kWeights,
                    .id = "run.file",
                    .where = path,
                    .problem = "the summary of the run is missing or damaged",
                    .hint = "remove the folder, and resume: the run is then repeated"});
}

/// Adds sums, maxima and warnings of one run to the summary of all.
void add_run(RunSummary& all, const Json& run) {
  const double seconds = number_at(run, fields::kWallSeconds);
  const double effective =
      all.effective_fraction * all.wall_seconds + number_at(run, fields::kEffectiveFraction) * seconds;
  all.wall_seconds += seconds;
  all.effective_fraction = all.wall_seconds > 0 ? effective / all.wall_seconds : 0;
  all.steps += static_cast<int64_t>(number_at(run, fields::kSteps));
  all.epochs += number_at(run, fields::kEpochs);
  const std::pair<const char*, int64_t&> peaks[] = {{fields::kPredictedMemoryBytes, all.predicted_memory_bytes},
                                                    {fields::kRealMemoryBytes, all.real_memory_bytes},
                                                    {fields::kPredictedReservedBytes, all.predicted_reserved_bytes},
                                                    {fields::kRealReservedBytes, all.real_reserved_bytes}};
  for (const auto& [name, peak] : peaks) peak = std::max(peak, static_cast<int64_t>(number_at(run, name)));
  for (const Json& warning : value_at(run, fields::kWarnings)) {
    const std::string text = warning.is_string() ? warning.get<std::string>() : "";
    const bool is_new = std::find(all.warnings.begin(), all.warnings.end(), text) == all.warnings.end();
    if (is_new && !text.empty()) all.warnings.push_back(text);
  }
}

std::vector<std::pair<std::string, double>> list_of(const Metrics& metrics) { return {metrics.begin(), metrics.end()}; }

}  // namespace

RunOptions repeat_of(const RunOptions& run, const Repeats& repeats, int64_t index) {
  if (repeats.count <= 1) return run;
  const std::string name = fmt::format("/{}-{}", repeats.folder, index + 1);
  RunOptions repeat = run;
  repeat.output_dir += name;
  if (!run.tensorboard_dir.empty()) repeat.tensorboard_dir += name;
  if (!run.resume.empty() && !resolve_checkpoint("latest", repeat.output_dir).ok()) repeat.resume.clear();
  if (repeats.own_seeds) repeat.seed += static_cast<uint64_t>(index);
  return repeat;
}

Metrics mean_and_deviation(const std::vector<Metrics>& runs) {
  Metrics all;
  std::map<std::string, std::vector<double>> values;
  for (const Metrics& run : runs) {
    for (const auto& [name, value] : run) values[name].push_back(value);
  }
  for (const auto& [name, list] : values) {
    const auto count = static_cast<double>(list.size());
    const double mean = std::accumulate(list.begin(), list.end(), 0.0) / count;
    double squares = 0;
    for (const double value : list) squares += (value - mean) * (value - mean);
    all[name] = mean;
    all[name + "_std"] = list.size() > 1 ? std::sqrt(squares / (count - 1)) : 0;
  }
  return all;
}

absl::Status save_common_settings(const ConfigParser& parser, const std::string& program,
                                  const std::string& output_dir) {
  const std::string config = parser.to_yaml();
  TRAINKIT_RETURN_IF_ERROR(write_file_list(
      output_dir, program, {{"config.yaml", Digest::of(config)}, {"summary.json", ""}, {"report.html", ""}}));
  return write_file_atomically(Fs::posix(), output_dir + "/config.yaml", config);
}

absl::StatusOr<std::vector<Metrics>> summarize_repeats(const std::string& output_dir,
                                                       const std::vector<std::pair<std::string, uint64_t>>& runs) {
  RunSummary all{.versions = library_versions()};
  std::vector<Metrics> scores, final_metrics, best_metrics;
  Metrics bad_samples;
  for (const auto& [folder, seed] : runs) {
    TRAINKIT_ASSIGN_OR_RETURN(const Json run, read_summary(folder));
    add_run(all, run);
    scores.push_back(scores_of(run));
    final_metrics.push_back(numbers_of(value_at(run, fields::kFinal)));
    best_metrics.push_back(numbers_of(value_at(run, fields::kBest)));
    for (const auto& [part, count] : numbers_of(value_at(run, fields::kBadSamples)))
      bad_samples[std::string(fields::kBadSamples) + "." + part] += count;
    all.runs.emplace_back(folder.substr(folder.rfind('/') + 1), seed);
  }
  all.final_metrics = list_of(mean_and_deviation(final_metrics));
  all.best_metrics = list_of(mean_and_deviation(best_metrics));
  Metrics own = mean_and_deviation(scores);
  own.merge(bad_samples);
  own[fields::kRepeats] = static_cast<double>(runs.size());
  all.scores = list_of(own);
  TRAINKIT_RETURN_IF_ERROR(write_summary(output_dir, all));
  return scores;
}

}  // namespace trainkit::detail
