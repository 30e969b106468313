#pragma once
// The files of a run in its output folder: which of them a new run may replace.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "trainkit/app/run_options.h"

namespace trainkit::detail {

// Note [Files of a run]
//
// A run replaces and removes only files that it can prove to be those of a run in this folder:
// - run.json lists the files that the run wrote, with the digests of their contents (report/run_file.h). A file with
//   another digest was changed by somebody.
// - A folder whose run.json has no list, or that has none but a checkpoint of this library, holds a run of an earlier
//   version, or of a program without RunFolder. Its files are known by their names.
// - Checkpoints, event files, reports, errors and logs are known by their form.
// Any other file of these names, and any other file in results/, stops a new run before its first step. All other files
// are neither read nor changed.

/// The files in an output folder that a new run would replace or remove.
class RunFiles {
 public:
  /// `app_files`: AppInfo::files.
  RunFiles(std::filesystem::path output_dir, const std::vector<std::string>& app_files);

  /// Whether a folder in checkpoints/ has the name of a checkpoint.
  bool has_checkpoint() const { return !checkpoints_.empty(); }
  /// Whether a run in this folder has ended without an error.
  bool is_finished() const;
  /// Whether the run in this folder still trains, in another process of this machine.
  bool is_running() const;
  /// Whether run.json lists the files of the run.
  bool has_list() const;
  /// storage.foreign (exit code 2) for the first file that is not known to be one of a run.
  absl::Status check() const;
  /// The files of an earlier run, relative to the folder. A checkpoint is one of them.
  const std::vector<std::filesystem::path>& own() const { return own_; }
  /// All files that a new run would replace or remove, and all of this library's event files in tensorboard/.
  const std::set<std::filesystem::path>& all() const { return all_; }
  /// Id of the run; empty for a run of an earlier version.
  const std::string& run_id() const { return run_id_; }

 private:
  void add(const std::filesystem::path& file);
  void add_results();
  void add_media();
  void add_event_files();
  /// Returns why a file is not known to be one of a run; empty if it is.
  std::string doubt(const std::filesystem::path& file) const;
  bool is_listed_or_known(const std::string& name) const;

  std::filesystem::path output_dir_;
  std::set<std::string> names_;
  nlohmann::ordered_json run_;
  std::string run_id_;
  std::vector<std::filesystem::path> checkpoints_, own_;
  std::set<std::filesystem::path> all_;
  bool has_own_checkpoint_ = false;
  absl::Status foreign_;
};

/// Returns the id in the names of the run's TensorBoard files. A resumed run of an earlier version has none: in its own
/// folder all event files of this library without an id are its own, in a shared one none is known to be.
std::string id_of_run(const RunOptions& run, bool resumes);
/// Returns the files that run.json lists when a run begins: those that it does not write with write_file_atomically(),
/// and those that it writes at once.
std::vector<std::string> first_files(const RunOptions& run, std::vector<std::string> app_files);

/// Keeps the files of an earlier run in a temporary folder until the new run has begun. If it does not begin, the
/// destructor removes what it has written and puts the files back.
class EarlierRun {
 public:
  EarlierRun() = default;
  /// Moves RunFiles::own() and nothing else. `tensorboard_dir`: that of the new run, from which remove() removes the
  /// event files of the earlier one; may be empty. Errors: those of RunFiles::check, kStorage.
  static absl::StatusOr<EarlierRun> move_away(const std::string& output_dir,
                                              const std::vector<std::string>& app_files = {},
                                              const std::string& tensorboard_dir = {});
  /// Makes room for a run in --output_dir: move_away(), or nothing for a run that continues there.
  static absl::StatusOr<EarlierRun> make_room(const RunOptions& run, const std::vector<std::string>& app_files);
  ~EarlierRun();
  EarlierRun(EarlierRun&& other) noexcept { swap(other); }
  EarlierRun& operator=(EarlierRun&& other) noexcept {
    swap(other);
    return *this;
  }

  /// Removes the files for good.
  absl::Status remove();

 private:
  void swap(EarlierRun& other) {
    std::swap(output_dir_, other.output_dir_);
    std::swap(kept_, other.kept_);
    std::swap(app_files_, other.app_files_);
    std::swap(moved_, other.moved_);
    std::swap(stayed_, other.stayed_);
    std::swap(events_, other.events_);
  }

  std::filesystem::path output_dir_, kept_;  // `kept_` is empty if nothing was moved
  std::vector<std::string> app_files_;
  std::vector<std::filesystem::path> moved_;  // relative to either
  std::set<std::filesystem::path> stayed_;    // files of all() that are not the earlier run's
  std::vector<std::filesystem::path> events_;
};

}  // namespace trainkit::detail
