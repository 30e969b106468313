#pragma once
/// Worker threads that read batches.

#include <sys/types.h>

#include <atomic>
#include <ctime>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "data/loader/batch_queue.h"
#include "data/loader/batch_reader.h"
#include "data/loader/futex.h"
#include "data/loader/slot.h"
#include "trainkit/data/prefetcher.h"

namespace trainkit::detail {

// Note [Detached workers]
//
// A read from a dead network file system can block for ever, and a thread cannot be killed. ~WorkerPool therefore waits
// kPatience for the threads and detaches those that have not ended. Everything that a worker uses is owned through
// shared pointers: the thread holds its Reader, the Reader holds WorkerPoolState, and that holds data set, sampler,
// slot layout and counters. A detached worker that wakes up later finds its queue cancelled or `stop` set, and ends.

// Note [LibTorch's threads]
//
// A worker runs LibTorch with one thread. at::set_num_threads(1) sets this for the calling thread, but also becomes the
// initial number of every thread that uses LibTorch later. Each worker calls it before it counts itself in `started`.
// When all workers have started, restore_num_threads() sets the consumer's number again, and later threads inherit that
// one.

/// Run times of the worker threads. Reading them costs the workers nothing.
class ThreadTimes {
 public:
  /// Called by a worker when it starts and when it ends.
  void enter();
  void leave();
  /// Returns the sum over running and ended threads. Any thread may call it.
  ReaderTimes sum() const;

 private:
  struct Thread {
    pid_t id;
    clockid_t clock;
  };
  static ReaderTimes times_of(const Thread& thread);
  mutable std::mutex mutex_;
  std::vector<Thread> running_;
  ReaderTimes ended_;
};

/// Counters for the lifetime of a Prefetcher, updated by all of its threads.
struct Counters {
  ThreadTimes threads;
  std::atomic<int64_t> allocations{0};
  std::atomic<int64_t> read_nanoseconds{0};
};

/// State shared by all readers of a pool; each of them keeps it alive.
struct WorkerPoolState {
  WorkerPoolState(std::shared_ptr<const BatchReader> batch_reader, std::shared_ptr<const SlotLayout> slot_layout,
                  std::shared_ptr<Counters> all_counters)
      : batches(std::move(batch_reader)), layout(std::move(slot_layout)), counters(std::move(all_counters)) {}

  const std::shared_ptr<const BatchReader> batches;
  const std::shared_ptr<const SlotLayout> layout;
  const std::shared_ptr<Counters> counters;

  int workers = 0;  // set before any starts
  std::atomic<bool> stop{false};
  std::mutex mutex;
  std::shared_ptr<BatchQueue> queue;  // guarded by mutex

  alignas(kCacheLine) std::atomic<int64_t> awaited{-1};  // the batch for which the consumer sleeps; -1 if awake
  Futex consumer;
  alignas(kCacheLine) std::atomic<int> started{0};
  Futex start;
  std::atomic<int> ended{0};
  Futex end;
};

/// Reads batches into its own slots: a worker, or the consumer in its own thread.
class Reader {
 public:
  Reader(std::shared_ptr<WorkerPoolState> pool, int num_slots);

  /// Called by the reader. Reads batch `number` into a free slot (one must be free) and publishes it.
  void read(BatchQueue& queue, int64_t number);
  int free_slots() const { return __builtin_popcountll(free_.load(std::memory_order_acquire)); }

  /// Called by the consumer. The slot may be filled again.
  void give_back(RingSlot* slot);

  /// Main function of a worker thread.
  void work();
  void wake() { futex_.wake(); }

  /// Current activity, for messages. Any thread may read it.
  struct Reading {
    const BatchQueue* queue = nullptr;
    int64_t begin = 0, end = 0;  // batches claimed
    int64_t row = -1;
    Clock::time_point since{};
  };
  Reading reading() const;
  /// Returns true if work() has nothing left to do.
  bool ended() const { return ended_.load(std::memory_order_acquire); }

 private:
  bool await_slots(const BatchQueue& queue, int group);
  bool await_queue(std::shared_ptr<BatchQueue>& queue);
  void note_claim(const BatchQueue& queue, int64_t begin, int64_t end);
  void read_queue(BatchQueue& queue);

  const std::shared_ptr<WorkerPoolState> pool_;
  const int num_slots_;
  std::unique_ptr<RingSlot[]> slots_;
  BatchReader::Scratch scratch_;
  int group_ = 1;  // batches per claim

  alignas(kCacheLine) std::atomic<uint64_t> free_;
  std::atomic<int> wanted_slots_{0};  // number of free slots for which it sleeps; 0 if awake
  Futex futex_;

  alignas(kCacheLine) std::atomic<const BatchQueue*> claim_queue_{nullptr};
  std::atomic<int64_t> claim_begin_{0};
  std::atomic<int64_t> claim_end_{0};
  std::atomic<int64_t> row_{-1};
  std::atomic<int64_t> since_{0};
  std::atomic<bool> ended_{false};
};

/// The worker threads. Belongs to the consumer.
class WorkerPool {
 public:
  explicit WorkerPool(std::shared_ptr<WorkerPoolState> state) : state_(std::move(state)) {}
  /// Stops the threads. Detaches those that do not end within `kPatience`, for example because they are stuck in a
  /// read. See Note [Detached workers].
  ~WorkerPool();

  /// Starts the threads on the current queue and returns when they run, at the latest after kPatience. Throws
  /// std::system_error if a thread cannot be started.
  void start(int num_workers, int slots_per_worker);
  void set_queue(std::shared_ptr<BatchQueue> queue);
  WorkerPoolState& state() { return *state_; }
  const Reader& worker(int i) const { return *workers_[i]; }
  int size() const { return static_cast<int>(workers_.size()); }
  /// Restores the calling thread's number of LibTorch threads once all workers have started. See Note [LibTorch's
  /// threads].
  void restore_num_threads();

  static constexpr std::chrono::milliseconds kPatience{300};

 private:
  const std::shared_ptr<WorkerPoolState> state_;
  std::vector<std::shared_ptr<Reader>> workers_;
  std::vector<std::thread> threads_;
  int num_threads_to_restore_ = 0;
};

}  // namespace trainkit::detail
