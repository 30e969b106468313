#pragma once
// The error that ends a source of batches.

#include <absl/status/status.h>

#include <atomic>
#include <mutex>
#include <utility>

namespace trainkit::detail {

/// Any thread may call both functions. get() costs one relaxed load until there is an error.
class StopReason {
 public:
  /// Keeps the first error. OK becomes kCancelled.
  void set(absl::Status reason) {
    const std::lock_guard lock(mutex_);
    if (is_set_) return;
    reason_ = reason.ok() ? absl::CancelledError("the source of batches was stopped") : std::move(reason);
    is_set_ = true;
  }
  absl::Status get() const {
    if (!is_set_.load(std::memory_order_relaxed)) return absl::OkStatus();
    const std::lock_guard lock(mutex_);
    return reason_;
  }

 private:
  std::atomic<bool> is_set_{false};
  mutable std::mutex mutex_;
  absl::Status reason_;  // guarded by mutex_
};

}  // namespace trainkit::detail
