#pragma once
// How CheckpointStore writes a checkpoint, see Note [Checkpoint commit] in checkpoint.cpp. Internal.

#include <absl/status/status.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

#include "trainkit/core/fs.h"
#include "trainkit/train/checkpoint.h"

namespace trainkit {

struct CheckpointStore::Impl {
  Impl(Directory directory, const CheckpointOptions& options)
      : folder(std::move(directory)), keep_last(options.keep_last), keep_every(options.keep_every) {}

  /// Returns the number of bytes that a checkpoint needs, or an error if the disk does not have them.
  absl::StatusOr<int64_t> check_space(int64_t step, int64_t file_bytes, const std::string& state) const;
  absl::Status remove_stale() const;
  absl::Status write(const std::string& temporary, int64_t step, const CheckpointContents& contents,
                     const std::string& state) const;
  absl::Status put_in_place(const std::string& temporary, int64_t step, bool& swapped) const;
  absl::Status drop_old(int64_t newest) const;
  /// Puts the folder `temporary`, which was written with `status`, in place and makes it the latest checkpoint. After
  /// an error removes it.
  absl::Status finish(const std::string& temporary, int64_t step, int64_t needed, absl::Status status);

  Directory folder;
  int keep_last;
  int64_t keep_every;
  mutable std::mutex mutex;  // serialises saves; guards retention
  absl::Status retention;
};

}  // namespace trainkit
