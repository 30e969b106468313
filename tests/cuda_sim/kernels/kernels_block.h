#pragma once
// The threads of one block. A thread that waits gets its own fibre.
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cuda_on_host.h"
#include "fibers.h"

namespace cuda_sim {

/// The order in which threads of a block and blocks of a grid run: CUDA_SIM_THREAD_ORDER=forward, reverse or random,
/// which depends on CUDA_SIM_SEED and `name`.
class Order {
 public:
  explicit Order(const std::string& name);
  /// A permutation of 0 ... count-1.
  void fill(std::vector<unsigned>& order, size_t count);

 private:
  enum class Kind { kForward, kReverse, kRandom } kind_;
  std::mt19937 random_;
};

/// A fault of one thread, or of a block that cannot continue.
struct Failure {
  cudaError_t error;
  std::string kind, text;  // of a finding
};

/// Runs a block: each thread until it waits for others. Threads that never wait share one fibre.
class BlockRunner {
 public:
  /// Of this thread of the operating system, which keeps its fibres.
  static BlockRunner& instance();

  /// Calls body() once for each thread of the block, with on_host::place set except `thread`. Returns nullptr, or the
  /// reason for which the block failed.
  const Failure* run(Order& order, const std::function<void()>& body);

  // For threads of the block:
  void sync_block();
  uint64_t exchange(on_host::WarpOperation operation, unsigned mask, uint64_t bits, unsigned source);
  unsigned lane() const { return current_->id % kWarp; }
  /// Ends the block with an error.
  [[noreturn]] void fail(cudaError_t error, const std::string& kind, const std::string& text);
  /// The running fibre; nullptr if none.
  const Fiber* fiber() const { return running_; }

 private:
  static constexpr unsigned kWarp = 32;
  enum class State : uint8_t { kReady, kAtBarrier, kAtWarp, kExited };

  struct Thread {
    unsigned id;
    uint3 index;
    State state;
    on_host::WarpOperation operation;
    unsigned mask, source;
    uint64_t bits;  // first the lane's value, then the result
    Fiber* fiber;
  };

  struct Warp {
    unsigned alive = 0, waiting = 0;  // lanes
    std::vector<Thread*> threads;     // in the order of execution
  };

  void begin_block(Order& order);
  void begin_thread(unsigned id);
  void work(Fiber& fiber);
  void resume(Thread& thread);
  void enter(Fiber& fiber);
  void end_block();
  Fiber& idle_fiber();
  /// Leaves the fibre until the thread is ready.
  void wait(State state);
  bool release();
  bool release_barrier();
  bool release_warps();
  /// Returns whether all lanes of the mask that have not exited wait for the same operation.
  bool is_complete(const Warp& warp, unsigned mask, on_host::WarpOperation operation) const;
  void complete(Warp& warp, unsigned mask);
  bool is_source(const Warp& warp, const Thread& thread) const;
  void record(cudaError_t error, const std::string& kind, const std::string& text, const Thread* thread);
  std::string deadlock() const;

  const std::function<void()>* body_ = nullptr;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<unsigned> order_;
  std::vector<Thread*> ready_;
  size_t next_ = 0, next_ready_ = 0;  // in order_ and ready_
  size_t alive_ = 0, at_barrier_ = 0;
  Thread* current_ = nullptr;
  Fiber* running_ = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_;
  std::unique_ptr<Failure> failure_;
};

}  // namespace cuda_sim
