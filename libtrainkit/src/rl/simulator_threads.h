#pragma once
// Threads that share the simulators of one step.

#include <c10/util/FunctionRef.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace trainkit::detail {

/// Runs a loop over [0, count) on several threads, the calling one included, a few indices at a time. Threads take the
/// next indices when they are done with theirs, so that slow simulators do not hold up the others.
class SimulatorThreads {
 public:
  using Work = c10::function_ref<void(int64_t)>;

  /// Starts threads - 1 threads.
  SimulatorThreads(int64_t threads, int64_t count);
  ~SimulatorThreads();
  SimulatorThreads(const SimulatorThreads&) = delete;
  SimulatorThreads& operator=(const SimulatorThreads&) = delete;

  /// Calls work(i), which must not throw, for each i, and waits for all of them.
  void run(Work work);

 private:
  void serve();
  void take(Work work);

  const int64_t count_, each_;
  const Work* work_ = nullptr;      // of the loop in progress; published by round_
  std::atomic<int64_t> next_{0};    // index that the next thread takes
  std::atomic<uint32_t> round_{0};  // number of loops so far
  std::atomic<int64_t> busy_{0};    // threads that have not ended the loop in progress
  std::atomic<bool> ends_{false};
  std::vector<std::thread> threads_;
};

}  // namespace trainkit::detail
