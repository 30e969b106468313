#include "app/earlier_run.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <system_error>

#include "logging/report_data.h"
#include "logging/run_file.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

namespace fs = std::filesystem;

/// Returns true for step-<eight digits or more>, the names that CheckpointStore writes.
bool is_checkpoint_name(const std::string& name) {
  constexpr std::string_view kPrefix = "step-";
  return name.starts_with(kPrefix) && name.size() >= kPrefix.size() + 8 &&
         std::all_of(name.begin() + kPrefix.size(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
}

/// The files of a run in `output_dir`, relative to it.
std::vector<fs::path> files_of_run(const fs::path& output_dir) {
  std::vector<fs::path> files;
  for (const fs::path& checkpoint : checkpoints_of(output_dir)) files.push_back("checkpoints" / checkpoint.filename());
  for (const char* name : {"checkpoints/latest", "config.yaml", "metrics.jsonl", "tensorboard", "results", "loss.svg",
                           "bad_samples.csv", "summary.json", "error.json", "profile.json", "run.json", "report.html",
                           "best.safetensors", "best.before.safetensors"}) {
    std::error_code ignored;
    if (fs::exists(fs::symlink_status(output_dir / name, ignored))) files.emplace_back(name);
  }
  return files;
}

absl::Status cannot_move(const fs::path& path, const std::error_code& error) {
  return to_status({.exit_code = ExitCode::kStorage,
                    .id = "storage.output_dir",
                    .where = path.string(),
                    .field = "output_dir",
                    .problem = "cannot be removed: " + error.message()});
}

}  // namespace

std::vector<fs::path> checkpoints_of(const fs::path& output_dir) {
  std::vector<fs::path> found;
  std::error_code ignored;  // no such folder: no checkpoints
  for (fs::directory_iterator entry(output_dir / "checkpoints", ignored), end; entry != end; entry.increment(ignored)) {
    if (is_checkpoint_name(entry->path().filename().string())) found.push_back(entry->path());
  }
  return found;
}

bool holds_finished_run(const std::string& output_dir) {
  return number_at(read_json_file(output_dir + "/summary.json"), "exit_code", -1) == 0;
}

absl::StatusOr<EarlierRun> EarlierRun::move_away(const std::string& output_dir) {
  EarlierRun run;
  run.output_dir_ = output_dir;
  const std::vector<fs::path> files = files_of_run(output_dir);
  if (files.empty()) return run;
  run.kept_ = fs::path(output_dir) / temporary_name("earlier-run");
  std::error_code failed;
  fs::create_directories(run.kept_ / "checkpoints", failed);
  for (auto file = files.begin(); !failed && file != files.end(); ++file) {
    fs::rename(run.output_dir_ / *file, run.kept_ / *file, failed);  // does not follow links
    if (!failed) run.moved_.push_back(*file);
  }
  if (failed) return cannot_move(run.kept_, failed);
  return run;
}

EarlierRun::~EarlierRun() {
  if (kept_.empty()) return;
  std::error_code ignored;  // the files stay in the temporary folder
  for (const fs::path& file : files_of_run(output_dir_)) fs::remove_all(output_dir_ / file, ignored);
  for (const fs::path& file : moved_) fs::rename(kept_ / file, output_dir_ / file, ignored);
  fs::remove(kept_ / "checkpoints", ignored);
  fs::remove(kept_, ignored);  // only if it is empty
}

absl::Status EarlierRun::remove() {
  if (kept_.empty()) return absl::OkStatus();
  std::error_code failed;
  fs::remove_all(std::exchange(kept_, {}), failed);
  return failed ? cannot_move(output_dir_, failed) : absl::OkStatus();
}

}  // namespace trainkit::detail
