#pragma once
/// Copies to devices that may still read a batch's memory.

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <algorithm>
#include <mutex>
#include <vector>

namespace trainkit::detail {

/// The ends of copies, as events of the streams that make them. Threads: any; replicas copy their rows at once.
class PendingCopies {
 public:
  /// Everything that was queued so far on the current stream of `device`.
  void add(c10::Device device);
  bool is_empty() const {
    const std::lock_guard lock(mutex_);
    return ends_.empty();
  }
  /// Whether all have ended; if so it forgets them.
  bool have_ended();
  /// Blocks until all have ended.
  void wait();

 private:
  mutable std::mutex mutex_;
  std::vector<c10::Event> ends_;
};

}  // namespace trainkit::detail
