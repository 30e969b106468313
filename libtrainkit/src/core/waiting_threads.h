#pragma once
/// Lets threads without work sleep while other processes need the processors. See Note [Waiting threads].

namespace trainkit::detail {

/// What happened on the processors in one interval, in processors: 1 is one processor all the time.
struct ProcessorUse {
  /// Used by other processes.
  double others = 0;
  /// Wanted by threads of this process that could run and had to wait.
  double waited = 0;
};

/// Decides from one interval to the next whether waiting threads should sleep.
class WaitingPolicy {
 public:
  /// Returns the decision after an interval.
  bool update(const ProcessorUse& use);

 private:
  bool sleeps_ = false;
  int quiet_intervals_ = 0;
};

/// From now on, lets LibTorch's intra-op threads sleep after microseconds without work, instead of milliseconds, while
/// other processes take processors that they could use; they would otherwise take them from threads that compute. A
/// thread of its own looks four times a second. Call it after the number of threads is chosen. Returns at once; later
/// calls do nothing. Does nothing if the environment has OMP_WAIT_POLICY or GOMP_SPINCOUNT, under ThreadSanitizer, and
/// with fewer than two threads.
void let_waiting_threads_sleep();

}  // namespace trainkit::detail
