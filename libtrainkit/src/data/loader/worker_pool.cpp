#include "data/loader/worker_pool.h"

#include <ATen/Parallel.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <fstream>
#include <string>

#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

// Time per claim: makes a wake-up (1 to 5 us) cheap, and is short enough that the consumer rarely waits for the group.
constexpr int64_t kGroupNanoseconds = 50'000;
// Parts of the first batch: readers that start late or get slow rows still end at about the same time.
constexpr int kPartsPerReader = 4;

int64_t nanoseconds(Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

}  // namespace

// ---- ThreadTimes

void ThreadTimes::enter() {
  Thread self{.id = ::gettid(), .clock = {}};
  if (pthread_getcpuclockid(pthread_self(), &self.clock) != 0) return;
  const std::lock_guard lock(mutex_);
  running_.push_back(self);
}

void ThreadTimes::leave() {
  const std::lock_guard lock(mutex_);
  const auto self = std::find_if(running_.begin(), running_.end(), [](const Thread& t) { return t.id == ::gettid(); });
  if (self == running_.end()) return;
  const ReaderTimes times = times_of(*self);
  ended_.cpu_seconds += times.cpu_seconds;
  ended_.queued_seconds += times.queued_seconds;
  running_.erase(self);
}

ReaderTimes ThreadTimes::sum() const {
  const std::lock_guard lock(mutex_);  // no thread can end during the sum
  ReaderTimes all = ended_;
  for (const Thread& thread : running_) {
    const ReaderTimes times = times_of(thread);
    all.cpu_seconds += times.cpu_seconds;
    all.queued_seconds += times.queued_seconds;
  }
  return all;
}

ReaderTimes ThreadTimes::times_of(const Thread& thread) {
  timespec time{};
  ::clock_gettime(thread.clock, &time);
  int64_t ran = 0, queued = 0;  // nanoseconds; see Documentation/scheduler/sched-stats.rst of Linux
  std::ifstream("/proc/self/task/" + std::to_string(thread.id) + "/schedstat") >> ran >> queued;
  return {.cpu_seconds = static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec),
          .queued_seconds = 1e-9 * static_cast<double>(queued)};
}

// ---- Reader

Reader::Reader(std::shared_ptr<WorkerPoolState> pool, int num_slots)
    : pool_(std::move(pool)),
      num_slots_(num_slots),
      slots_(std::make_unique<RingSlot[]>(num_slots)),
      free_(num_slots == 64 ? ~uint64_t{0} : (uint64_t{1} << num_slots) - 1) {
  for (int i = 0; i < num_slots; ++i) {
    slots_[i].owner = this;
    slots_[i].bit = uint64_t{1} << i;
  }
}

void Reader::read(BatchQueue& queue, int64_t number) {
  const uint64_t free = free_.load(std::memory_order_acquire);
  RingSlot* slot = &slots_[std::countr_zero(free)];
  free_.fetch_and(~slot->bit, std::memory_order_relaxed);
  const bool first = number == 0;
  try {
    const BatchPlan plan = queue.schedule.plan(number);
    slot->slot.prepare(*pool_->layout, pool_->counters->allocations);
    TeamRead* team = first && pool_->workers > 1 ? &queue.first : nullptr;
    const int64_t parts = int64_t{kPartsPerReader} * std::max(1, pool_->workers);
    pool_->batches->read(plan, slot->slot, scratch_, team, std::max<int64_t>(1, plan.rows / parts));
  } catch (...) {
    slot->slot.fail(annotate(status_from_current_exception(), "cannot allocate a batch"));
  }
  if (first) queue.first.close();
  if (!queue.publish(number, slot)) free_.fetch_or(slot->bit, std::memory_order_release);
}

void Reader::give_back(RingSlot* slot) {
  const uint64_t before = free_.fetch_or(slot->bit, std::memory_order_seq_cst);
  const int wanted = wanted_slots_.load(std::memory_order_seq_cst);
  if (wanted > 0 && std::popcount(before | slot->bit) >= wanted) futex_.wake();
}

Reader::Reading Reader::reading() const {
  return {.queue = claim_queue_.load(std::memory_order_relaxed),
          .begin = claim_begin_.load(std::memory_order_relaxed),
          .end = claim_end_.load(std::memory_order_relaxed),
          .row = row_.load(std::memory_order_relaxed),
          .since = Clock::time_point(std::chrono::nanoseconds(since_.load(std::memory_order_relaxed)))};
}

void Reader::work() {
  pthread_setname_np(pthread_self(), "trainkit-loader");
  at::get_num_threads();  // initialises the thread's number now; see Note [LibTorch's threads]
  at::set_num_threads(1);
  pool_->started.fetch_add(1, std::memory_order_seq_cst);
  pool_->start.wake();
  reading_row = &row_;
  pool_->counters->threads.enter();
  std::shared_ptr<BatchQueue> queue;
  while (await_queue(queue)) read_queue(*queue);
  reading_row = nullptr;
  pool_->counters->threads.leave();
  queue.reset();
  ended_.store(true, std::memory_order_release);
  pool_->ended.fetch_add(1, std::memory_order_seq_cst);
  pool_->end.wake();
}

// Sleeps until there is a queue that this reader has not finished. Returns false if the pool is stopped.
bool Reader::await_queue(std::shared_ptr<BatchQueue>& queue) {
  for (;;) {
    const uint32_t ticket = futex_.ticket();
    if (pool_->stop.load(std::memory_order_seq_cst)) return false;
    {
      const std::lock_guard lock(pool_->mutex);
      if (pool_->queue && pool_->queue != queue) {
        queue = pool_->queue;
        return true;
      }
    }
    futex_.wait(ticket);
  }
}

// Sleeps until `group` slots are free. Returns false if the queue is cancelled.
bool Reader::await_slots(const BatchQueue& queue, int group) {
  for (;;) {
    if (queue.cancelled.load(std::memory_order_seq_cst)) return false;
    if (free_slots() >= group) return true;
    wanted_slots_.store(group, std::memory_order_seq_cst);
    const uint32_t ticket = futex_.ticket();
    const bool sleep = std::popcount(free_.load(std::memory_order_seq_cst)) < group &&
                       !queue.cancelled.load(std::memory_order_seq_cst);
    if (sleep) futex_.wait(ticket);
    wanted_slots_.store(0, std::memory_order_relaxed);
  }
}

// Publishes the claimed batches for a timeout message.
void Reader::note_claim(const BatchQueue& queue, int64_t begin, int64_t end) {
  since_.store(nanoseconds(Clock::now()), std::memory_order_relaxed);
  claim_queue_.store(&queue, std::memory_order_relaxed);
  claim_begin_.store(begin, std::memory_order_relaxed);
  claim_end_.store(end, std::memory_order_relaxed);
}

void Reader::read_queue(BatchQueue& queue) {
  for (bool joined = false; await_slots(queue, group_); joined = true) {
    const int64_t begin = queue.next.fetch_add(group_, std::memory_order_relaxed);
    const auto start = Clock::now();
    if (!joined && begin > 0) {
      note_claim(queue, 0, 1);
      queue.first.join();
      row_.store(-1, std::memory_order_relaxed);
    }
    const int64_t end = std::min(begin + group_, queue.end);
    if (begin >= end) return;
    note_claim(queue, begin, end);
    for (int64_t number = begin; number < end && !queue.cancelled.load(std::memory_order_relaxed); ++number) {
      read(queue, number);
    }
    row_.store(-1, std::memory_order_relaxed);
    claim_end_.store(begin, std::memory_order_relaxed);
    // Wake the consumer once for the whole group, and only if it sleeps for one of its batches.
    const int64_t awaited = pool_->awaited.load(std::memory_order_seq_cst);
    if (awaited >= begin && awaited < end) pool_->consumer.wake();
    const int64_t took = nanoseconds(Clock::now()) - nanoseconds(start);
    pool_->counters->read_nanoseconds.fetch_add(took, std::memory_order_relaxed);
    const int64_t per_batch = std::max<int64_t>(1, took / (end - begin));
    group_ = static_cast<int>(std::clamp<int64_t>(kGroupNanoseconds / per_batch, 1, std::max(1, num_slots_ / 2)));
  }
}

// ---- WorkerPool

void WorkerPool::start(int num_workers, int slots_per_worker) {
  if (num_workers > 0) num_threads_to_restore_ = at::get_num_threads();
  for (int i = 0; i < num_workers; ++i) {
    auto reader = std::make_shared<Reader>(state_, slots_per_worker);
    threads_.emplace_back([reader] { reader->work(); });
    workers_.push_back(std::move(reader));
  }
  // The workers already read. The consumer has nothing to do before the first batch is ready, so it can wait here.
  const auto deadline = Clock::now() + kPatience;
  while (num_workers > 0 && Clock::now() < deadline) {
    const uint32_t ticket = state_->start.ticket();
    if (state_->started.load(std::memory_order_seq_cst) == num_workers) break;
    state_->start.wait(ticket, deadline);
  }
  restore_num_threads();
}

WorkerPool::~WorkerPool() {
  state_->stop.store(true, std::memory_order_seq_cst);
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->queue) state_->queue->cancel();
    state_->queue = nullptr;
  }
  for (const auto& worker : workers_) worker->wake();
  const auto deadline = Clock::now() + kPatience;
  const int all = size();
  while (Clock::now() < deadline) {
    const uint32_t ticket = state_->end.ticket();
    if (state_->ended.load(std::memory_order_seq_cst) == all) break;
    state_->end.wait(ticket, deadline);
  }
  // Join only threads that have ended. See Note [Detached workers].
  for (size_t i = 0; i < threads_.size(); ++i) {
    if (workers_[i]->ended()) {
      threads_[i].join();
    } else {
      threads_[i].detach();
    }
  }
}

void WorkerPool::set_queue(std::shared_ptr<BatchQueue> queue) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->queue = std::move(queue);
  }
  for (const auto& worker : workers_) worker->wake();
}

void WorkerPool::restore_num_threads() {
  if (num_threads_to_restore_ == 0 || state_->started.load(std::memory_order_acquire) < size()) return;
  at::set_num_threads(num_threads_to_restore_);
  num_threads_to_restore_ = 0;
}

}  // namespace trainkit::detail
