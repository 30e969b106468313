#include "trainkit/scale_run.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/io/safetensors.h"
#include "trainkit/logging/sinks.h"

namespace trainkit::tool {
namespace {

namespace fs = std::filesystem;

absl::Status missing(const std::string& path, std::string problem, std::string hint = {}) {
  return to_status({.exit_code = ExitCode::kUsage,
                    .id = "scale.run",
                    .where = path,
                    .problem = std::move(problem),
                    .hint = std::move(hint)});
}

/// Returns the integer value of the key `name` in a resolved configuration; 0 for null or a missing key.
int64_t setting(const std::string& yaml, const std::string& name) {
  const std::string key = "\n" + name + ": ";
  const size_t at = ("\n" + yaml).find(key);
  int64_t value = 0;
  if (at == std::string::npos) return 0;
  const char* const begin = yaml.data() + at + key.size() - 1;
  std::from_chars(begin, yaml.data() + yaml.size(), value);
  return value;
}

absl::StatusOr<double> median_rows_per_second(const std::string& path) {
  TRAINKIT_ASSIGN_OR_RETURN(const std::vector<LogRecord> records, read_jsonl(path));
  std::vector<double> rates;
  for (const LogRecord& record : records) {
    const double* rate = record.find("samples_per_second");
    if (record.split == "train" && rate && *rate > 0) rates.push_back(*rate);
  }
  if (rates.size() < 4)
    return missing(path, "fewer than four records with samples_per_second", "run longer, or --log_every 1");
  rates.erase(rates.begin(), rates.begin() + static_cast<ptrdiff_t>(rates.size() / 2));
  const auto middle = rates.begin() + static_cast<ptrdiff_t>(rates.size() / 2);
  std::nth_element(rates.begin(), middle, rates.end());
  return *middle;
}

absl::StatusOr<int64_t> parameter_bytes(const std::string& output_dir) {
  std::string last;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(output_dir + "/checkpoints", ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step-") && name > last) last = name;
  }
  if (last.empty()) return missing(output_dir, "no checkpoint in this run", "give --gradient_mb");
  const std::string path = output_dir + "/checkpoints/" + last + "/model.safetensors";
  TRAINKIT_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::open(path));
  int64_t bytes = 0;
  for (const SafetensorsEntry& entry : file.entries()) bytes += entry.end - entry.begin;
  return bytes;
}

absl::StatusOr<MeasuredStep> read_step(const std::string& output_dir) {
  TRAINKIT_ASSIGN_OR_RETURN(const std::string yaml, Fs::posix().read_file(output_dir + "/config.yaml", 1 << 20));
  MeasuredStep step;
  const int64_t micro_rows = setting(yaml, "batch_size");
  if (micro_rows <= 0) return missing(output_dir + "/config.yaml", "no batch_size in this file", "give --step_seconds");
  int64_t rows = setting(yaml, "global_batch_size");
  if (rows == 0) rows = micro_rows * std::max<int64_t>(setting(yaml, "grad_accum_steps"), 1);
  step.micro_steps = std::max<int64_t>(rows / micro_rows, 1);
  TRAINKIT_ASSIGN_OR_RETURN(const double rate, median_rows_per_second(output_dir + "/metrics.jsonl"));
  step.seconds = static_cast<double>(rows) / rate;
  TRAINKIT_ASSIGN_OR_RETURN(step.gradient_bytes, parameter_bytes(output_dir));
  return step;
}

}  // namespace

absl::StatusOr<MeasuredStep> read_measured_step(const std::string& output_dir) {
  absl::StatusOr<MeasuredStep> step = read_step(output_dir);
  if (!step.ok()) return reclassify(step.status(), ExitCode::kUsage, "scale.run");
  return step;
}

}  // namespace trainkit::tool
