#include "app/run/run_files.h"

#include <algorithm>
#include <string_view>
#include <system_error>

#include "app/run/resume.h"
#include "core/files/new_files.h"
#include "logging/event_files.h"
#include "logging/field_names.h"
#include "logging/media.h"
#include "report/report.h"
#include "report/report_data.h"
#include "report/run_file.h"
#include "train/checkpoint/checkpoint_folder.h"
#include "train/checkpoint/checkpoint_manifest.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

namespace fs = std::filesystem;

/// Files of every run. Those of a single trainer are in AppInfo::files. Earlier versions wrote loss.svg.
const std::set<std::string> kFiles = {"config.yaml",     "metrics.jsonl",    kRunFile,
                                      "summary.json",    "error.json",       "report.html",
                                      "loss.svg",        "best.safetensors", "best.before.safetensors",
                                      "bad_samples.csv", "profile.json",     "checkpoints/latest",
                                      "wandb/run_id",    "wandb/client.log", "media/histograms.jsonl"};

/// Results of the trainers of earlier versions, whose runs have no list.
const std::set<std::string> kEarlierResults = {"report.json",
                                               "scores.json",
                                               "samples.json",
                                               "predictions.csv",
                                               "confusion.svg",
                                               "maps.mat",
                                               "classification.png",
                                               "ground_truth.png",
                                               "report_classification.png",
                                               "report_ground_truth.png",
                                               "report_errors.png",
                                               "errors.png"};
const std::set<std::string> kEarlierResultFolders = {"adapter", "best_adapter", "merged"};
const std::set<std::string> kWeightFiles = {"adapter_model.safetensors", "adapter_config.json", "model.safetensors",
                                            "config.json"};

/// How files begin that are known by their form.
const std::vector<std::string> kErrorBegin = {"{\n  \"exit_code\": "}, kLogBegin = {"{\"step\":"},
                               kLatestBegin = {"step-"};

bool is_earlier_result(const fs::path& name) {
  const auto part = std::next(name.begin());
  if (std::distance(name.begin(), name.end()) == 2) return kEarlierResults.contains(part->string());
  return std::distance(name.begin(), name.end()) == 3 && kEarlierResultFolders.contains(part->string()) &&
         kWeightFiles.contains(name.filename().string());
}

/// Returns true for step-<eight digits or more>, the names that CheckpointStore writes.
bool is_checkpoint_name(const std::string& name) {
  constexpr std::string_view kPrefix = "step-";
  return name.starts_with(kPrefix) && name.size() >= kPrefix.size() + 8 &&
         std::all_of(name.begin() + kPrefix.size(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
}

/// Returns true for profile.rank<number>.json, which a rank writes and rank 0 removes.
bool is_profile_of_rank(std::string_view name) {
  constexpr std::string_view kBegin = "profile.rank", kEnd = ".json";
  if (!name.starts_with(kBegin) || !name.ends_with(kEnd) || name.size() <= kBegin.size() + kEnd.size()) return false;
  name.remove_prefix(kBegin.size());
  return name.substr(0, name.size() - kEnd.size()).find_first_not_of("0123456789") == name.npos;
}

/// Whether a folder has the runs of --repeats or --folds. Their common folder had no run.json in earlier versions.
bool holds_several_runs(const fs::path& folder) {
  std::error_code none;
  for (fs::directory_iterator entry(folder, none), end; !none && entry != end; entry.increment(none)) {
    const std::string name = entry->path().filename().string();
    const size_t number = name.starts_with("repeat-") ? 7 : name.starts_with("fold-") ? 5 : name.size();
    const bool is_number = number < name.size() && name.find_first_not_of("0123456789", number) == name.npos;
    if (is_number && is_run_file(read_json_file((entry->path() / kRunFile).string()))) return true;
  }
  return false;
}

/// Returns the first entry of a folder that is no file of a checkpoint; "manifest.json" if that is missing; "" for a
/// checkpoint and nothing else.
std::string foreign_in_checkpoint(const fs::path& folder) {
  const auto parent = Fs::posix().open_directory(folder.parent_path().string());
  if (!parent.ok()) return ".";
  const auto checkpoint = parent->open_directory(folder.filename().string());  // does not follow a link
  if (!checkpoint.ok()) return ".";
  const std::string foreign = foreign_entry(*checkpoint);
  return foreign.empty() && !checkpoint->type_of(kManifestFile).ok() ? kManifestFile : foreign;
}

/// Removes the empty folders below `folder`, and `folder` if it is empty then.
void remove_empty_folders(const fs::path& folder) {
  std::error_code ignored;
  if (fs::symlink_status(folder, ignored).type() != fs::file_type::directory) return;
  std::vector<fs::path> entries;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) entries.push_back(entry.path());
  for (const fs::path& entry : entries) remove_empty_folders(entry);
  fs::remove(folder, ignored);  // fails unless it is empty
}

absl::Status cannot_move(const fs::path& path, const std::error_code& error) {
  return to_status({.exit_code = ExitCode::kStorage,
                    .id = "storage.output_dir",
                    .where = path.string(),
                    .field = "output_dir",
                    .problem = "cannot be removed: " + error.message()});
}

}  // namespace

RunFiles::RunFiles(fs::path output_dir, const std::vector<std::string>& app_files)
    : output_dir_(std::move(output_dir)),
      names_(kFiles),
      run_(read_json_file((output_dir_ / kRunFile).string())),
      run_id_(read_run_id(output_dir_.string())) {
  names_.insert(app_files.begin(), app_files.end());
  std::error_code none;
  for (fs::directory_iterator entry(output_dir_ / "checkpoints", none), end; entry != end; entry.increment(none)) {
    if (is_checkpoint_name(entry->path().filename().string()))
      checkpoints_.push_back("checkpoints" / entry->path().filename());
  }
  std::sort(checkpoints_.begin(), checkpoints_.end());
  for (const fs::path& checkpoint : checkpoints_) {
    has_own_checkpoint_ = has_own_checkpoint_ || foreign_in_checkpoint(output_dir_ / checkpoint).empty();
  }
  for (const std::string& name : names_) add(name);
  for (fs::directory_iterator entry(output_dir_, none), end; entry != end; entry.increment(none)) {
    if (is_profile_of_rank(entry->path().filename().string())) add(entry->path().filename());
  }
  for (const fs::path& checkpoint : checkpoints_) add(checkpoint);
  add_results();
  add_media();
  add_event_files();
}

void RunFiles::add(const fs::path& file) {
  std::error_code none;
  if (!fs::exists(fs::symlink_status(output_dir_ / file, none))) return;
  all_.insert(file);
  const std::string problem = doubt(file);
  if (problem.empty()) {
    own_.push_back(file);
  } else if (foreign_.ok()) {
    foreign_ = foreign_file((output_dir_ / file).string(), problem, "move it away, or choose another --output_dir");
  }
}

void RunFiles::add_results() {
  std::error_code none;
  const fs::path results = output_dir_ / "results";
  if (!fs::is_directory(results, none)) return add("results");
  std::vector<fs::path> files;
  for (fs::recursive_directory_iterator entry(results, none), end; !none && entry != end; entry.increment(none)) {
    if (entry->symlink_status().type() != fs::file_type::directory) files.push_back(entry->path());
  }
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files) add(file.lexically_relative(output_dir_));
}

/// Adds the pictures; other files in their folder stay.
void RunFiles::add_media() {
  std::error_code none;
  std::vector<fs::path> files;
  for (fs::directory_iterator entry(output_dir_ / kMediaFolder, none), end; !none && entry != end;
       entry.increment(none)) {
    if (read_media_name(entry->path().filename().string()).step >= 0) files.push_back(entry->path().filename());
  }
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files) add(kMediaFolder / file);
}

void RunFiles::add_event_files() {
  std::error_code none;
  for (fs::directory_iterator entry(output_dir_ / "tensorboard", none), end; entry != end; entry.increment(none)) {
    const fs::path file = entry->path().filename();
    if (file.extension() != ".trainkit") continue;
    all_.insert("tensorboard" / file);
    if (is_run_file(run_) && is_event_file_of(file.string(), run_id_)) own_.push_back("tensorboard" / file);
  }
}

bool RunFiles::is_finished() const {
  return number_at(read_json_file((output_dir_ / "summary.json").string()), fields::kExitCode, -1) == 0;
}

bool RunFiles::is_running() const { return is_still_running(run_); }

bool RunFiles::has_list() const { return !listed_files(run_).is_null(); }

absl::Status RunFiles::check() const { return foreign_; }

bool RunFiles::is_listed_or_known(const std::string& name) const {
  if (has_list()) return listed_files(run_).contains(name);
  if (!is_run_file(run_) && !has_own_checkpoint_) {
    return (name == "config.yaml" || name == "summary.json") && holds_several_runs(output_dir_);
  }
  return names_.contains(name) || is_profile_of_rank(name) ||
         (name.starts_with("results/") && is_earlier_result(fs::path(name)));
}

std::string RunFiles::doubt(const fs::path& file) const {
  constexpr const char* kForeign = "is not known to be a file of a run, and a new run would replace it";
  const fs::path path = output_dir_ / file;
  const std::string name = file.generic_string();
  std::error_code none;
  if (is_checkpoint_name(file.filename().string())) {
    const std::string foreign = foreign_in_checkpoint(path);
    if (foreign.empty()) return "";
    return foreign == kManifestFile || foreign == "." ? "is not a checkpoint, and a new run would remove it"
                                                      : "contains " + foreign + ", which is no file of a checkpoint";
  }
  if (fs::symlink_status(path, none).type() != fs::file_type::regular) return kForeign;
  if (name == kRunFile) return is_run_file(run_) ? "" : kForeign;
  if (name == "error.json") return begins_with(path.string(), kErrorBegin) ? "" : kForeign;
  if (name == "report.html") return begins_with(path.string(), {report_begin()}) ? "" : kForeign;
  if (name == "media/histograms.jsonl" && is_run_file(run_) && begins_with(path.string(), kLogBegin)) return "";
  if (name == "metrics.jsonl" && !has_list() && begins_with(path.string(), kLogBegin)) return "";
  if (name == "checkpoints/latest" && begins_with(path.string(), kLatestBegin)) return "";
  if (!is_listed_or_known(name)) return kForeign;
  if (!has_list() || !listed_files(run_).at(name).is_string()) return "";
  const auto opened = Fs::posix().open_file(path.string());
  const auto digest = opened.ok() ? digest_of(*opened) : absl::StatusOr<std::string>(opened.status());
  if (digest.ok() && *digest == listed_files(run_).at(name).get<std::string>()) return "";
  return "was changed after the run in this folder wrote it, and a new run would replace it";
}

std::string id_of_run(const RunOptions& run, bool resumes) {
  std::string known = resumes ? read_run_id(run.output_dir) : "";
  if (!known.empty()) return known;
  const bool is_earlier = resumes && Fs::posix().exists(run.output_dir + "/" + kRunFile);
  return is_earlier && run.tensorboard_dir.empty() ? "" : make_run_id();
}

std::vector<std::string> first_files(const RunOptions& run, std::vector<std::string> app_files) {
  for (const char* name : {"config.yaml", "metrics.jsonl", "best.before.safetensors"}) app_files.emplace_back(name);
  if (run.use_wandb) app_files.emplace_back("wandb/client.log");
  return app_files;
}

absl::StatusOr<EarlierRun> EarlierRun::move_away(const std::string& output_dir,
                                                 const std::vector<std::string>& app_files,
                                                 const std::string& tensorboard_dir) {
  const RunFiles files(output_dir, app_files);
  TRAINKIT_RETURN_IF_ERROR(files.check());
  EarlierRun run;
  run.output_dir_ = output_dir;
  run.app_files_ = app_files;
  if (files.own().empty()) return run;
  run.kept_ = fs::path(output_dir) / temporary_name("earlier-run");
  std::error_code failed, ignored;
  for (const fs::path& file : files.own()) {
    fs::create_directories((run.kept_ / file).parent_path(), failed);
    if (!failed) fs::rename(run.output_dir_ / file, run.kept_ / file, failed);  // does not follow links
    if (failed) return cannot_move(run.kept_, failed);
    run.moved_.push_back(file);
  }
  for (const char* folder : {"results", kMediaFolder, "tensorboard"}) remove_empty_folders(run.output_dir_ / folder);
  run.stayed_ = RunFiles(output_dir, app_files).all();
  if (tensorboard_dir.empty() || files.run_id().empty()) return run;
  for (const auto& entry : fs::directory_iterator(tensorboard_dir, ignored)) {
    if (is_event_file_of(entry.path().filename().string(), files.run_id())) run.events_.push_back(entry.path());
  }
  return run;
}

absl::StatusOr<EarlierRun> EarlierRun::make_room(const RunOptions& run, const std::vector<std::string>& app_files) {
  return is_new_in_its_folder(run) ? move_away(run.output_dir, app_files, run.tensorboard_dir) : EarlierRun();
}

EarlierRun::~EarlierRun() {
  if (kept_.empty()) return;
  std::error_code ignored;  // the files stay in the temporary folder
  const RunFiles files(output_dir_, app_files_);
  for (const fs::path& file : files.all()) {
    if (!stayed_.contains(file)) fs::remove_all(output_dir_ / file, ignored);
  }
  for (const fs::path& file : moved_) {
    fs::create_directories((output_dir_ / file).parent_path(), ignored);
    fs::rename(kept_ / file, output_dir_ / file, ignored);
  }
  remove_empty_folders(kept_);
}

absl::Status EarlierRun::remove() {
  if (kept_.empty()) return absl::OkStatus();
  std::error_code failed;
  for (const fs::path& file : events_) fs::remove(file, failed);
  fs::remove_all(std::exchange(kept_, {}), failed);
  return failed ? cannot_move(output_dir_, failed) : absl::OkStatus();
}

}  // namespace trainkit::detail
