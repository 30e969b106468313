#include "data/loader/pending_copies.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace trainkit::detail {

void PendingCopies::add(c10::Device device) {
  c10::Event end(device.type());
  end.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  const std::lock_guard lock(mutex_);
  ends_.push_back(std::move(end));
}

bool PendingCopies::have_ended() {
  const std::lock_guard lock(mutex_);
  if (!std::all_of(ends_.begin(), ends_.end(), [](const c10::Event& end) { return end.query(); })) return false;
  ends_.clear();
  return true;
}

void PendingCopies::wait() {
  const std::lock_guard lock(mutex_);
  for (const c10::Event& end : ends_) end.synchronize();
  ends_.clear();
}

}  // namespace trainkit::detail
