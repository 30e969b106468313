#include "train/agreement/steps_in_flight.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <utility>

#include "core/base/device_error.h"

namespace trainkit::detail {

// Note [Steps in flight]
// ~~~~~~~~~~~~~~~~~~~~~~
// Without a limit the host would queue steps much faster than the device runs them. Each queued step holds its batch
// and its gradients in device memory, since the caching allocator frees them only when their work is done. Places
// alternate between two steps: end() records an event per device in the current place and moves to the other one;
// begin() waits for the events that the other place still has, those of the step before the last. The host therefore
// waits only if it is a whole step ahead. The same index selects host buffers (StepBatches::keep), which the device may
// read until that event.

std::vector<at::Device> devices_of(const DeviceReplicator& devices) {
  std::vector<at::Device> list;
  for (int64_t replica = 0; replica < devices.replicas(); ++replica) list.push_back(devices.device(replica));
  return list;
}

StepsInFlight::StepsInFlight(std::vector<at::Device> devices) : devices_(std::move(devices)) {
  for (const at::Device device : devices_) {
    const std::string name = device.str();
    if (names_.find(name) == std::string::npos) names_ += (names_.empty() ? "" : ", ") + name;
  }
}

void StepsInFlight::note(int64_t step) const {
  if (!devices_.front().is_cpu()) note_step(names_, step);
}

void StepsInFlight::begin() {
  for (const c10::Event& end : ends_[place_]) end.synchronize();
}

bool StepsInFlight::is_ready(size_t place) const {
  return std::all_of(ends_[place].begin(), ends_[place].end(), [](const c10::Event& end) { return end.query(); });
}

void StepsInFlight::end() {
  if (devices_.front().is_cpu()) return;
  const c10::impl::VirtualGuardImpl backend(devices_.front().type());
  std::vector<c10::Event>& ends = ends_[place_];
  if (ends.empty()) {
    for (const at::Device device : devices_) ends.emplace_back(device.type());
  }
  for (size_t i = 0; i < devices_.size(); ++i) ends[i].record(backend.getStream(devices_[i]));
  place_ = (place_ + 1) % kMost;
}

}  // namespace trainkit::detail
