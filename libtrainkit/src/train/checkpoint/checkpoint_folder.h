#pragma once
// Reads the folder of a run's checkpoints. docs/formats/checkpoint.md specifies it.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/weights/stored_tensors.h"
#include "train/checkpoint/checkpoint_manifest.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/state_dict.h"
#include "trainkit/train/checkpoint.h"

namespace trainkit::detail {

inline constexpr char kFolder[] = "checkpoints";
inline constexpr char kLatestFile[] = "latest";
inline constexpr char kModelFile[] = "model.safetensors";
inline constexpr char kOptimizerFile[] = "optimizer.safetensors";
inline constexpr char kStateFile[] = "state.json";
/// Begin of the names of CheckpointContents::files.
inline constexpr char kSourcePrefix[] = "source-";
inline constexpr int64_t kMaxStateBytes = int64_t{1} << 30;

/// Returns the first entry of a checkpoint that is no file of one; "" if there is none. An unreadable folder has ".".
std::string foreign_entry(const Directory& checkpoint);

/// "step-00000120".
std::string step_name(int64_t step);
/// Parses a folder name made by step_name; nullopt for any other name.
std::optional<int64_t> parse_step(std::string_view name);

/// Writes one of CheckpointContents::files and flushes it. Error of exit code 1: it has another number of bytes.
absl::StatusOr<FileRecord> write_source_file(const Directory& checkpoint, const PendingFile& file);
/// Bytes of all files.
int64_t bytes_of(const std::vector<PendingFile>& files);
/// Opens the files of a checkpoint that `rank` has saved with names "<rank, four digits>.<name>", by name.
absl::StatusOr<std::map<std::string, ReadableFile>> open_source_files(const CheckpointPath& checkpoint, int64_t rank);
/// "<rank, four digits>.<name>".
std::string source_file_name(int64_t rank, std::string_view name);

/// Makes an error of exit code 5 of an error of a file.
absl::Status as_weights(const absl::Status& status);

/// Makes the error of a full disk: `folder` has `free_bytes`, the checkpoint needs `needed`.
absl::Status no_space(const std::string& folder, int64_t step, int64_t free_bytes, int64_t needed);

/// Returns the steps of the folder's checkpoints, in ascending order.
absl::StatusOr<std::vector<int64_t>> list_steps(const Directory& folder);
/// Verifies the files of a checkpoint.
absl::Status verify_step(const Directory& folder, int64_t step);
/// Returns the newest valid step that is at most `below`.
std::optional<int64_t> newest_valid_step(const Directory& folder, int64_t below);
/// Adds a hint to `status` that names an older valid checkpoint.
absl::Status with_hint(const Directory& folder, int64_t step, const absl::Status& status);
/// Returns the step that `latest` names; without that file the newest one.
absl::StatusOr<int64_t> latest_step(const Directory& folder);
/// Reads state.json of one checkpoint's folder.
absl::StatusOr<StateDict> read_state(const Directory& checkpoint);
/// Verifies and reads a checkpoint. With `stored` its tensors are only listed; `stored` reads them.
absl::StatusOr<CheckpointContents> load_step(const Directory& folder, int64_t step, StoredTensors* stored = nullptr);
/// load_checkpoint() that only lists the tensors; `stored` reads them.
absl::StatusOr<CheckpointContents> list_checkpoint(const CheckpointPath& checkpoint, StoredTensors& stored);

}  // namespace trainkit::detail
