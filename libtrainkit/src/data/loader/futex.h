#pragma once
/// Sleeping and waking between threads.

#include <atomic>
#include <chrono>
#include <cstdint>

namespace trainkit::detail {

using Clock = std::chrono::steady_clock;

/// Lets a thread sleep until another thread wakes it, with a time limit. Unlike std::atomic::wait it does not spin;
/// spinning halves the throughput if there are more threads than cores.
///
/// A futex carries no data. The sleeper checks its own atomics between `ticket` and `wait`:
///
///   sleeper:  flag.store(true); t = word.ticket(); if (!ready.load()) word.wait(t, deadline);
///   waker:    ready.store(true); if (flag.load()) word.wake();
///
/// All four accesses are sequentially consistent. Therefore the sleeper sees `ready` or the waker sees `flag`, and a
/// wake-up between `ticket` and `wait` makes `wait` return at once. wait may return early: check the condition again.
class Futex {
 public:
  uint32_t ticket() const { return word_.load(std::memory_order_seq_cst); }
  /// Sleeps until wake() is called or `deadline` is reached. Returns at once if wake() was called since `ticket`.
  void wait(uint32_t ticket, Clock::time_point deadline = Clock::time_point::max());
  /// Wakes all threads that sleep here.
  void wake();

 private:
  std::atomic<uint32_t> word_{0};
};

}  // namespace trainkit::detail
