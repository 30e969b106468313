#pragma once
// What other threads ask of a run, and what it reports to them.

#include <atomic>
#include <limits>
#include <mutex>

#include "trainkit/train/session.h"

namespace trainkit {

/// Any thread may call every function.
class HostRequests {
 public:
  void request_save() { asks_to_save_ = true; }
  void request_stop() { asks_to_stop_ = true; }
  /// Returns whether a save was requested since the last call.
  bool take_save() { return asks_to_save_.exchange(false); }
  bool has_stop() const { return asks_to_stop_; }

  void publish(const Progress& progress) {
    const std::lock_guard lock(mutex_);
    progress_ = progress;
  }
  Progress progress() const {
    const std::lock_guard lock(mutex_);
    return progress_;
  }

 private:
  std::atomic<bool> asks_to_save_{false}, asks_to_stop_{false};
  mutable std::mutex mutex_;
  Progress progress_{.loss = std::numeric_limits<double>::quiet_NaN()};  // guarded by mutex_
};

}  // namespace trainkit
