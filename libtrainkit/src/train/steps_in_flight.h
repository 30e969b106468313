#pragma once
// How far the host runs ahead of the devices.

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <array>
#include <cstdint>
#include <vector>

namespace trainkit::detail {

/// Lets the host queue one step while the devices are in the one before: enough for a device never to be idle, and
/// device memory that a queued step holds (batches, gradients of replicas) is that of two steps at most. On the CPU
/// nothing is queued, and nothing waited for.
class StepsInFlight {
 public:
  static constexpr size_t kMost = 2;

  /// Before anything of a step is queued: waits until the devices are done with the step before the last.
  void begin();
  /// After everything of a step is queued on the current streams of `devices`.
  void end(const std::vector<at::Device>& devices);
  /// Of kMost places, the one whose last step the devices are done with, after begin(): for memory that they read.
  size_t place() const { return place_; }

 private:
  std::array<std::vector<c10::Event>, kMost> ends_;  // of the steps before, by place, for each device
  size_t place_ = 0;
};

}  // namespace trainkit::detail
