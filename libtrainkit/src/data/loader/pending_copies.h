#pragma once
/// Device copies that may still read a batch's memory.

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <algorithm>
#include <mutex>
#include <vector>

namespace trainkit::detail {

/// Holds the ends of copies as events. Thread-safe: several replicas may copy their rows concurrently.
class PendingCopies {
 public:
  /// Records the end of all work queued so far on the current stream of `device`.
  void add(c10::Device device);
  bool is_empty() const {
    const std::lock_guard lock(mutex_);
    return ends_.empty();
  }
  /// Returns whether all copies have ended, and removes them if so.
  bool have_ended();
  /// Blocks until all copies have ended.
  void wait();

 private:
  mutable std::mutex mutex_;
  std::vector<c10::Event> ends_;
};

}  // namespace trainkit::detail
