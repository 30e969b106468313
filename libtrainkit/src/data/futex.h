#pragma once
/// A word to sleep on.

#include <atomic>
#include <chrono>
#include <cstdint>

namespace trainkit::detail {

using Clock = std::chrono::steady_clock;

/// Lets one thread sleep until another has something for it: std::atomic::wait with a time limit, and without its
/// spinning, which halves the throughput where there are more threads than cores.
/// It carries no data: what is waited for is in atomics of its own, which are looked at between `ticket` and `wait`:
///
///   sleeper:  flag.store(true); t = word.ticket(); if (!ready.load()) word.wait(t, deadline);
///   waker:    ready.store(true); if (flag.load()) word.wake();
///
/// (all sequentially consistent). wait may return early: look again.
class Futex {
 public:
  uint32_t ticket() const { return word_.load(std::memory_order_seq_cst); }
  /// Sleeps unless wake() was called since `ticket`; at most until `deadline`.
  void wait(uint32_t ticket, Clock::time_point deadline = Clock::time_point::max());
  /// Wakes all that sleep here.
  void wake();

 private:
  std::atomic<uint32_t> word_{0};
};

}  // namespace trainkit::detail
