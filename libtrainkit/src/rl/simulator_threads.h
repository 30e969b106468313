#pragma once
// Threads that share the simulators of one step.

#include <c10/util/FunctionRef.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace trainkit::detail {

// Note [Simulator threads]
//
// A loop ends when the work of all indices is done. It does not wait for threads that have not woken: on a busy machine
// the calling thread does their share. Such a thread may wake in a later loop, so a claim tells the loop to which it
// belongs: state_ has the number of the loop and the next index, and one fetch_add reads both. A claim below count_
// keeps its loop from ending, so work_ is that loop's until the claimed indices are counted in done_.

/// Runs a loop over [0, count) on several threads, the calling one included, a few indices at a time.
class SimulatorThreads {
 public:
  using Work = c10::function_ref<void(int64_t)>;

  /// Starts threads - 1 threads. `count` is less than 2^31.
  SimulatorThreads(int64_t threads, int64_t count);
  ~SimulatorThreads();
  SimulatorThreads(const SimulatorThreads&) = delete;
  SimulatorThreads& operator=(const SimulatorThreads&) = delete;

  /// Calls work(i), which must not throw, for each i, and returns when all are done.
  void run(Work work);

 private:
  void serve();
  void take();

  const int64_t count_, each_;
  const Work* work_ = nullptr;       // of the loop in progress; published by state_
  std::atomic<uint64_t> state_;      // number of the loop << 32 | next index
  std::atomic<int64_t> done_{0};     // indices of the loop that are done
  std::atomic<uint32_t> loops_{0};   // wakes the threads
  std::atomic<int64_t> started_{0};  // threads
  std::atomic<bool> ends_{false};
  std::vector<std::thread> threads_;
};

}  // namespace trainkit::detail
