#pragma once
// Writes checkpoints while training continues. Internal to Trainer.

#include <absl/status/status.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <optional>
#include <string>

#include "core/device/host_tensors.h"
#include "train/checkpoint/checkpoint_writer.h"
#include "trainkit/distributed/process_group.h"
#include "trainkit/train/checkpoint.h"

namespace trainkit {

/// Runs one save at a time in a background thread. Every rank calls begin() and finish() at the same steps, with its
/// writer. The destructor waits for the running save. See Note [Background saves].
///
/// Copies all tensors into one buffer, which is page-locked if they come from a GPU, with one wait; the optimizer's
/// state on the CPU is copied in the background. The buffer is kept for a minute, for the next save; then
/// release_unused_buffer() frees it.
class BackgroundSaves {
 public:
  /// @param group nullptr means one process.
  explicit BackgroundSaves(ProcessGroup* group) : group_(group) {}

  /// Lets `writer` write a copy of `contents`, which it prepares first. It lives until finish(). The optimizer's state
  /// must not change before wait_for_copy(). Without memory for a copy it writes before this returns. No other save may
  /// be running. @param logged status of flushing the log records of this checkpoint; an error fails the save.
  void begin(int64_t step, CheckpointContents contents, const absl::Status& logged, CheckpointWriter& writer);

  /// Returns whether the optimizer's state is still being copied.
  bool is_copying() const { return is_copying_; }
  /// Waits until it has been copied.
  void wait_for_copy() const { is_copying_.wait(true); }

  bool under_way() const { return written_.valid(); }
  /// Step of the running save, or of the last one.
  int64_t step() const { return step_; }
  /// Returns whether the running save has succeeded or failed.
  bool has_ended() const;
  /// Seconds in which saves were written in the background so far.
  double background_seconds() const;
  /// Waits for the running save. All ranks return an error or none does: exit code 8 if another rank could not save.
  absl::Status finish();

  /// Frees the buffer if the last save began more than a minute ago, once its file is written. Called after each step.
  void release_unused_buffer();

  using TimePoint = std::chrono::steady_clock::time_point;
  /// Returns whether the buffer of the last save, which began at `before`, is kept now.
  static bool keeps_buffer(std::optional<TimePoint> before, TimePoint now);

 private:
  using Write = std::function<absl::Status(CheckpointContents contents)>;
  std::future<absl::Status> write_in_background(const CheckpointContents& contents, const Write& write);

  ProcessGroup* group_;
  int64_t step_ = -1;
  std::optional<TimePoint> begun_;  // of the last save
  std::atomic<bool> is_writing_{false}, is_copying_{false};
  std::atomic<double> written_seconds_{0};  // of the saves that have ended
  detail::HostBuffer buffer_;
  std::future<absl::Status> written_;
};

}  // namespace trainkit
