#pragma once
// Limits how far the host runs ahead of the devices.

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <array>
#include <cstdint>
#include <vector>

namespace trainkit::detail {

/// Lets the host queue one step while the devices run the previous one. That keeps the devices busy, and bounds the
/// device memory of queued steps (batches, gradients of replicas) to two steps. On the CPU nothing is queued and
/// nothing waits.
class StepsInFlight {
 public:
  static constexpr size_t kMost = 2;

  /// Waits until the devices have finished the step before the last one. Call it before queuing any work of a step.
  void begin();
  /// Returns whether begin() would not wait.
  bool is_ready(size_t place) const;
  /// Records the end of a step on the current streams of `devices`. Call it after queuing all its work.
  void end(const std::vector<at::Device>& devices);
  /// Index, below kMost, of a host buffer that the devices no longer read. Valid after begin(): the last step that used
  /// it is done.
  size_t place() const { return place_; }

 private:
  std::array<std::vector<c10::Event>, kMost> ends_;  // of earlier steps, by place and device
  size_t place_ = 0;
};

}  // namespace trainkit::detail
