#include "trainkit/report/summary.h"

#include <fmt/format.h>
#include <torch/version.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "logging/escape_name.h"
#include "logging/field_names.h"
#include "trainkit/core/error.h"
#include "trainkit/core/format.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

namespace fields = detail::fields;

using Json = nlohmann::ordered_json;

/// Converts a number. NaN and infinity, which JSON lacks, become the strings used in metrics.jsonl.
Json number(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity";
}

Json metrics(const std::vector<std::pair<std::string, double>>& values) {
  Json object = Json::object();
  for (const auto& [name, value] : values) object[detail::escape_name(name)] = number(value);
  return object;
}

}  // namespace

std::map<std::string, std::string> library_versions() {
#ifdef __clang__  // checked first: clang also defines __GNUC__
  const std::string compiler = fmt::format("clang++ {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
  const std::string compiler = fmt::format("g++ {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif
  return {{"trainkit", TRAINKIT_VERSION}, {"libtorch", TORCH_VERSION}, {"compiler", compiler}};
}

std::string to_json(const RunSummary& summary) {
  Json json = {{fields::kExitReason, escape_text(summary.exit_reason)},
               {fields::kExitCode, summary.exit_code},
               {fields::kSteps, summary.steps},
               {fields::kEpochs, number(summary.epochs)},
               {fields::kWallSeconds, number(summary.wall_seconds)},
               {fields::kEffectiveFraction, number(summary.effective_fraction)},
               {fields::kFinal, metrics(summary.final_metrics)},
               {fields::kBest, metrics(summary.best_metrics)},
               {fields::kBestStep, summary.best_step < 0 ? Json(nullptr) : Json(summary.best_step)},
               {fields::kVersions, Json::object()}};
  if (summary.predicted_memory_bytes > 0) json[fields::kPredictedMemoryBytes] = summary.predicted_memory_bytes;
  if (summary.real_memory_bytes > 0) json[fields::kRealMemoryBytes] = summary.real_memory_bytes;
  if (summary.predicted_reserved_bytes > 0) json[fields::kPredictedReservedBytes] = summary.predicted_reserved_bytes;
  if (summary.real_reserved_bytes > 0) json[fields::kRealReservedBytes] = summary.real_reserved_bytes;
  for (const auto& [name, score] : summary.scores) {
    const size_t dot = name.find('.');
    Json& place = dot == name.npos ? json : json[detail::escape_name(name.substr(0, dot))];
    place[detail::escape_name(dot == name.npos ? name : name.substr(dot + 1))] = number(score);
  }
  for (const std::string& warning : summary.warnings) json[fields::kWarnings].push_back(format_text(warning));
  for (const auto& [folder, seed] : summary.runs) {
    json[fields::kRuns].push_back({{fields::kFolder, format_text(folder)}, {fields::kSeed, seed}});
  }
  for (const auto& [name, version] : summary.versions)
    json[fields::kVersions][escape_text(name)] = format_text(version);
  return json.dump(2) + "\n";
}

std::string to_text(const RunFacts& facts) {
  std::string text;
  for (const auto& [name, value] : facts) {
    if (!text.empty()) text += "\n";
    text += (name.ends_with(':') ? name : fmt::format("{:<10}", name)) + " " + value;
  }
  return text;
}

absl::Status write_summary(const std::string& output_dir, const RunSummary& summary) {
  TRAINKIT_RETURN_IF_ERROR(write_file_atomically(Fs::posix(), output_dir + "/summary.json", to_json(summary)));
  if (summary.exit_code != 0) return absl::OkStatus();
  TRAINKIT_ASSIGN_OR_RETURN(const Directory directory, Fs::posix().open_directory(output_dir));
  const absl::Status removed = directory.remove_file("error.json");
  return absl::IsNotFound(removed) ? absl::OkStatus() : removed;
}

absl::Status write_error(const std::string& output_dir, const absl::Status& error) {
  return write_file_atomically(Fs::posix(), output_dir + "/error.json", error_json(error));
}

}  // namespace trainkit
