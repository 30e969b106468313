#pragma once
// Writes some steps of a run as a trace for Perfetto (--profile). Internal to Trainer.

#include <absl/status/statusor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string>

namespace trainkit {

class ProcessGroup;

/// Records operations, stages, loader workers, copies and saves of the steps `first` to `first + kSteps - 1` of a run
/// with LibTorch's profiler (Kineto), and writes them to `<folder>/profile.json` in the format of Chrome traces, which
/// https://ui.perfetto.dev opens. With several ranks, rank 0 joins the files of all ranks. A run that resumes after
/// `first` is recorded from its first step. Used by one thread.
class StepProfile {
 public:
  static constexpr int64_t kSteps = 11;

  /// `first` = 0: records nothing. `group` may be nullptr.
  StepProfile(std::string folder, int64_t first, at::Device device, ProcessGroup* group);
  /// Drops a recording that was not written.
  ~StepProfile();
  StepProfile(const StepProfile&) = delete;
  StepProfile& operator=(const StepProfile&) = delete;

  /// Whether the first step has not come yet.
  bool is_waiting() const { return first_ > 0; }
  bool is_recording() const { return recording_from_ > 0; }
  /// Starts recording if `step`, the next one, is the first. Returns true once, when the last step has ended.
  bool begin_step(int64_t step);
  /// Ends the recording, writes it on every rank and returns one line for the log: file and steps. Collective. Errors:
  /// exit code 6, storage.write.
  absl::StatusOr<std::string> write(int64_t last_step);

 private:
  std::string folder_;
  int64_t first_;
  at::Device device_;
  ProcessGroup* group_;
  int64_t recording_from_ = 0;
};

}  // namespace trainkit
