#pragma once
// A checkpoint whose tensors several ranks write. Internal to Trainer.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "train/checkpoint/checkpoint_manifest.h"
#include "trainkit/train/checkpoint.h"

namespace trainkit::detail {

/// The checkpoint of a step under a temporary name, on the rank that has the store. No other save of the store runs
/// until it is destroyed. See Note [Ranks save together] in save_together.cpp.
class CheckpointDraft {
 public:
  /// Creates the folder and the files of the tensors, which have their headers and their full size. Of `model` and
  /// `optimizer`, which may be meta tensors, only names, dtypes and shapes count. The disk must have room for another
  /// `more_bytes`. Errors are those of CheckpointStore::save.
  static absl::StatusOr<std::unique_ptr<CheckpointDraft>> create(CheckpointStore& store, int64_t step,
                                                                 const NamedTensors& model,
                                                                 const NamedTensors& optimizer, const StateDict& state,
                                                                 int64_t more_bytes);
  /// Removes the folder unless commit() was called.
  ~CheckpointDraft();
  CheckpointDraft(const CheckpointDraft&) = delete;
  CheckpointDraft& operator=(const CheckpointDraft&) = delete;

  /// Path of the folder. Its name is random: a process that can open it sees the same file system.
  std::string path() const;
  /// Opens the folder.
  absl::StatusOr<Directory> open() const;

  /// Completes the checkpoint and makes it the latest one. `files`, all but the state, are complete and flushed. After
  /// an error removes the folder.
  absl::Status commit(std::map<std::string, FileRecord> files);

 private:
  CheckpointDraft(CheckpointStore::Impl& store, int64_t step, std::string state);
  absl::Status create_files(const NamedTensors& model, const NamedTensors& optimizer, int64_t more_bytes);
  absl::Status write_rest(std::map<std::string, FileRecord> files) const;

  CheckpointStore::Impl& store_;
  std::unique_lock<std::mutex> lock_;
  int64_t step_;
  std::string state_;  // state.json
  std::string name_;
  int64_t needed_ = 0;
  bool is_removed_ = true;  // or has been put in place
};

}  // namespace trainkit::detail
