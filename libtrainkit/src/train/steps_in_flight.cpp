#include "steps_in_flight.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace trainkit::detail {

void StepsInFlight::begin() {
  for (const c10::Event& end : ends_[place_]) end.synchronize();
}

void StepsInFlight::end(const std::vector<at::Device>& devices) {
  if (devices.empty() || devices.front().is_cpu()) return;
  const c10::impl::VirtualGuardImpl backend(devices.front().type());
  std::vector<c10::Event>& ends = ends_[place_];
  if (ends.empty()) {
    for (const at::Device device : devices) ends.emplace_back(device.type());
  }
  for (size_t i = 0; i < devices.size(); ++i) ends[i].record(backend.getStream(devices[i]));
  place_ = (place_ + 1) % kMost;
}

}  // namespace trainkit::detail
