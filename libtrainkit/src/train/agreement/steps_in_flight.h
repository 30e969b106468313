#pragma once
// Limits how far the host runs ahead of the devices.

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "trainkit/distributed/device_replicator.h"

namespace trainkit::detail {

/// Returns the device of each replica.
std::vector<at::Device> devices_of(const DeviceReplicator& devices);

/// Lets the host queue one step while the devices run the previous one. That keeps the devices busy, and bounds the
/// device memory of queued steps (batches, gradients of replicas) to two steps. On the CPU nothing is queued and
/// nothing waits.
class StepsInFlight {
 public:
  static constexpr size_t kMost = 2;

  /// @param devices of the replicas, one at least
  explicit StepsInFlight(std::vector<at::Device> devices);

  /// Notes the step, from 1, that the devices compute, for the text of their errors. Not on the CPU: a memory plan's
  /// steps there are not those in which a GPU fails.
  void note(int64_t step) const;
  /// Waits until the devices have finished the step before the last one. Call it before queuing any work of a step.
  void begin();
  /// Returns whether begin() would not wait.
  bool is_ready(size_t place) const;
  /// Records the end of a step on the current streams of the devices. Call it after queuing all its work.
  void end();
  /// Index, below kMost, of a host buffer that the devices no longer read. Valid after begin(): the last step that used
  /// it is done.
  size_t place() const { return place_; }

 private:
  std::vector<at::Device> devices_;
  std::string names_;                                // of the devices, each once
  std::array<std::vector<c10::Event>, kMost> ends_;  // of earlier steps, by place and device
  size_t place_ = 0;
};

}  // namespace trainkit::detail
