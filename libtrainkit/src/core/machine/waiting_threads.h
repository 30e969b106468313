#pragma once
/// Lets threads without work sleep while other threads need the processors. See Note [Waiting threads].

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

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

/// Threads of an OpenMP team that does no work. While it exists, LibTorch's intra-op threads sleep after microseconds
/// without work.
class IdleTeam {
 public:
  /// Starts the threads. They receive no signals.
  explicit IdleTeam(int threads);
  ~IdleTeam();
  IdleTeam(const IdleTeam&) = delete;
  IdleTeam& operator=(const IdleTeam&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool is_over_ = false;
  std::thread owner_;
};

/// Returns a team for a program whose own threads take turns with LibTorch's. Null where it would change nothing: with
/// fewer than two intra-op threads, with many more processors than threads, if the environment has OMP_WAIT_POLICY or
/// GOMP_SPINCOUNT, and under ThreadSanitizer. Call it after the number of threads is chosen.
std::unique_ptr<IdleTeam> make_idle_team();

/// From now on, lets LibTorch's intra-op threads sleep after microseconds without work, instead of milliseconds, while
/// other processes take processors that they could use; they would otherwise take them from threads that compute. A
/// thread of its own looks four times a second. Call it after the number of threads is chosen. Returns at once; later
/// calls do nothing. Does nothing where make_idle_team() returns null.
void let_waiting_threads_sleep();

}  // namespace trainkit::detail
