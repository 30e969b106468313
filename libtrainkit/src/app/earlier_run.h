#pragma once
// The files of an earlier run in the output folder.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace trainkit::detail {

/// Lists the checkpoints in `output_dir`/checkpoints.
std::vector<std::filesystem::path> checkpoints_of(const std::filesystem::path& output_dir);

/// Returns whether a run in this folder has ended without an error.
bool holds_finished_run(const std::string& output_dir);

/// Keeps the files of an earlier run in a temporary folder until the new run has begun. If it does not begin, the
/// destructor removes what it has written and puts the files back.
class EarlierRun {
 public:
  EarlierRun() = default;
  /// Moves the files of a run, known by their names, and nothing else. Errors: kStorage.
  static absl::StatusOr<EarlierRun> move_away(const std::string& output_dir);
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
    std::swap(moved_, other.moved_);
  }

  std::filesystem::path output_dir_, kept_;   // `kept_` is empty if nothing was moved
  std::vector<std::filesystem::path> moved_;  // relative to either
};

}  // namespace trainkit::detail
