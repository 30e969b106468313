#pragma once
// Adds up the times of a stage.

#include <atomic>
#include <chrono>
#include <cstdint>

namespace trainkit::detail {

/// One thread adds, any thread may read.
class TimeSum {
 public:
  void add_since(std::chrono::steady_clock::time_point start) {
    const std::chrono::nanoseconds time = std::chrono::steady_clock::now() - start;
    nanoseconds_.fetch_add(time.count(), std::memory_order_relaxed);
  }
  double seconds() const { return 1e-9 * static_cast<double>(nanoseconds_.load(std::memory_order_relaxed)); }

 private:
  std::atomic<int64_t> nanoseconds_{0};
};

}  // namespace trainkit::detail
