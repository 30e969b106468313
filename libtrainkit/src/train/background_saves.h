#pragma once
// Checkpoints that are written while training goes on. Internal to Trainer.

#include <absl/status/status.h>

#include <chrono>
#include <cstdint>
#include <future>
#include <optional>
#include <string>

#include "core/host_tensors.h"
#include "trainkit/distributed/process_group.h"
#include "trainkit/train/checkpoint.h"

namespace trainkit {

/// One save at a time, in a thread of its own. Every rank calls begin() and finish() at the same steps; the one that
/// has called open() writes. The destructor waits for the save that is under way.
///
/// Tensors of a GPU are copied to one buffer of page-locked memory, with one wait. If a save begins within a minute of
/// the one before, the buffer is kept for the next; else it is freed when the file is written.
class BackgroundSaves {
 public:
  /// @param group nullptr: one process.
  explicit BackgroundSaves(ProcessGroup* group) : group_(group) {}

  absl::Status open(const std::string& output_dir, const CheckpointOptions& options);

  /// Begins to write a copy of `contents`; without memory for a copy it writes before it returns. None may be under
  /// way. @param logged what came of the records that belong to this checkpoint: a failure is that of the save.
  void begin(int64_t step, const CheckpointContents& contents, const absl::Status& logged);

  bool under_way() const { return written_.valid(); }
  /// Of the save that is under way, or was the last.
  int64_t step() const { return step_; }
  /// Whether the save that was under way has been written, or has failed.
  bool has_ended() const;
  /// Waits for the save that is under way. All ranks fail, or none: exit code 8 where another one could not save.
  absl::Status finish();

  using TimePoint = std::chrono::steady_clock::time_point;
  /// Whether a save that begins now keeps the buffer; `before`: when the save before it began.
  static bool keeps_buffer(std::optional<TimePoint> before, TimePoint now);

 private:
  std::future<absl::Status> write_beside(const CheckpointContents& contents);

  ProcessGroup* group_;
  std::optional<CheckpointStore> store_;
  int64_t step_ = -1;
  std::optional<TimePoint> begun_;  // of the last save
  detail::HostBuffer buffer_;
  std::future<absl::Status> written_;
};

}  // namespace trainkit
