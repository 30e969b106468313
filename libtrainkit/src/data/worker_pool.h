#pragma once
/// The threads that read batches, and how batches go from them to the consumer and memory comes back.
///
/// Batches of a Schedule are claimed in order, several at once where they are cheap, and written into slots of the one
/// that claimed them: memory that the other core has just written is never written again. A table tells in which slot
/// batch n is. There is no lock on the way of a batch: each hand-over is one atomic store, and a system call only if
/// the other side sleeps.

#include <sys/types.h>

#include <atomic>
#include <ctime>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "data/batch_reader.h"
#include "data/futex.h"
#include "data/schedule.h"
#include "data/slot.h"
#include "data/team_read.h"
#include "trainkit/data/prefetcher.h"

namespace trainkit::detail {

inline constexpr size_t kCacheLine = 64;

/// How long the workers' threads have run, asked by others: it costs the workers nothing.
class ThreadTimes {
 public:
  /// By a worker, when it begins and ends.
  void enter();
  void leave();
  /// Those that run and those that have ended. Any thread.
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

/// Counted over the life of a Prefetcher, by all of its threads.
struct Counters {
  ThreadTimes threads;
  std::atomic<int64_t> allocations{0};
  std::atomic<int64_t> read_nanoseconds{0};
};

class Reader;

/// A slot, and whose it is.
struct RingSlot {
  Slot slot;
  Reader* owner = nullptr;
  uint64_t bit = 0;  // in owner->free
};

/// Batch number to slot, for the batches that are under way.
class BatchQueue {
 public:
  BatchQueue(const Schedule& schedule, int64_t end, int64_t max_under_way);

  const Schedule schedule;
  const int64_t end;                                 // batches from here on are not claimed
  std::atomic<bool> cancelled{false};                // the consumer has gone elsewhere
  alignas(kCacheLine) std::atomic<int64_t> next{0};  // the first batch that is not claimed
  TeamRead first;                                    // batch 0

  /// By the reader: hands the slot to the consumer. False if the queue was cancelled: the slot is still the reader's.
  bool publish(int64_t number, RingSlot* slot);
  /// By the consumer.
  bool ready(int64_t number) const;
  RingSlot* peek(int64_t number) const;
  /// Batches that may be under way at once.
  int64_t capacity() const { return mask_ + 1; }
  RingSlot* take(int64_t number);
  /// By the consumer: nothing is published any more; what was comes back.
  std::vector<RingSlot*> cancel();

 private:
  struct alignas(kCacheLine) Entry {
    std::atomic<RingSlot*> slot{nullptr};
  };
  static RingSlot* closed();
  Entry& entry(int64_t number) { return entries_[number & mask_]; }
  const Entry& entry(int64_t number) const { return entries_[number & mask_]; }

  int64_t mask_;
  std::vector<Entry> entries_;
};

/// What all readers of a pool share, kept alive by each of them.
struct WorkerPoolState {
  WorkerPoolState(std::shared_ptr<const BatchReader> batch_reader, std::shared_ptr<const SlotLayout> slot_layout,
                  std::shared_ptr<Counters> all_counters)
      : batches(std::move(batch_reader)), layout(std::move(slot_layout)), counters(std::move(all_counters)) {}

  const std::shared_ptr<const BatchReader> batches;
  const std::shared_ptr<const SlotLayout> layout;
  const std::shared_ptr<Counters> counters;

  int readers = 0;  // workers, and the consumer if it reads too; set before any of them starts
  std::atomic<bool> stop{false};
  std::mutex mutex;
  std::shared_ptr<BatchQueue> queue;  // guarded by mutex

  alignas(kCacheLine) std::atomic<int64_t> awaited{-1};  // the batch that the consumer sleeps for
  Futex consumer;
  alignas(kCacheLine) std::atomic<int> started{0};
  Futex start;
  std::atomic<int> ended{0};
  Futex end;
};

/// One that reads batches into slots of its own: a worker, or the consumer in its own name.
class Reader {
 public:
  Reader(std::shared_ptr<WorkerPoolState> pool, int num_slots);

  /// By the reader: reads batch `number` into a free slot (there is one) and publishes it.
  void read(BatchQueue& queue, int64_t number);
  int free_slots() const { return __builtin_popcountll(free_.load(std::memory_order_acquire)); }

  /// By the consumer: the slot may be filled again.
  void give_back(RingSlot* slot);

  /// A worker's whole life.
  void work();
  void wake() { word_.wake(); }

  /// What it is doing, for a message. Any thread.
  struct Reading {
    const BatchQueue* queue = nullptr;
    int64_t begin = 0, end = 0;  // batches claimed
    int64_t row = -1;
    Clock::time_point since{};
  };
  Reading reading() const;
  /// Whether work() has nothing left to do.
  bool ended() const { return ended_.load(std::memory_order_acquire); }

 private:
  bool await_slots(const BatchQueue& queue, int group);
  bool await_queue(std::shared_ptr<BatchQueue>& queue);
  void claimed(const BatchQueue& queue, int64_t begin, int64_t end);
  void work_on(BatchQueue& queue);

  const std::shared_ptr<WorkerPoolState> pool_;
  const int num_slots_;
  std::unique_ptr<RingSlot[]> slots_;
  BatchReader::Scratch scratch_;
  int group_ = 1;  // batches per claim

  alignas(kCacheLine) std::atomic<uint64_t> free_;
  std::atomic<int> wanted_{0};  // sleeps until so many slots are free
  Futex word_;

  alignas(kCacheLine) std::atomic<const BatchQueue*> claim_queue_{nullptr};
  std::atomic<int64_t> claim_begin_{0};
  std::atomic<int64_t> claim_end_{0};
  std::atomic<int64_t> row_{-1};
  std::atomic<int64_t> since_{0};
  std::atomic<bool> ended_{false};
};

/// The threads. Belongs to the consumer.
class WorkerPool {
 public:
  explicit WorkerPool(std::shared_ptr<WorkerPoolState> state) : state_(std::move(state)) {}
  /// Ends the threads; those that do not end within `kPatience`, because they are stuck in a read, are left to
  /// themselves with all they use.
  ~WorkerPool();

  /// Starts the threads on the queue that is set, and returns when they run (or kPatience is over). Throws
  /// std::system_error if there are no more threads to be had.
  void start(int num_workers, int slots_per_worker);
  void set_queue(std::shared_ptr<BatchQueue> queue);
  WorkerPoolState& state() { return *state_; }
  const Reader& worker(int i) const { return *workers_[i]; }
  int size() const { return static_cast<int>(workers_.size()); }
  /// Workers give up LibTorch's own threads when they start, and a thread that starts later inherits that: sets the
  /// calling thread's number again, once all workers have started.
  void restore_num_threads();

  static constexpr std::chrono::milliseconds kPatience{300};

 private:
  const std::shared_ptr<WorkerPoolState> state_;
  std::vector<std::shared_ptr<Reader>> workers_;
  std::vector<std::thread> threads_;
  int num_threads_to_restore_ = 0;
};

}  // namespace trainkit::detail
