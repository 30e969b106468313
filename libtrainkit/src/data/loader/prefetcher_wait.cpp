// Waits of Prefetcher's consumer, and statistics.
#include <algorithm>
#include <chrono>
#include <string>

#include "data/loader/prefetcher_impl.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit {

// Returns the number of consecutive ready batches from number_ on.
int64_t Prefetcher::Impl::count_ready() {
  ready_end_ = std::max(ready_end_, number_);
  while (ready_end_ < number_ + queue_->capacity() && queue_->ready(ready_end_)) ++ready_end_;
  return ready_end_ - number_;
}

// Note [Wait accounting]
//
// stats() may run in any thread while the consumer waits, and must count the wait in progress without a lock. At the
// start of a wait the consumer subtracts the start time from wait_nanoseconds_, and at the end it adds the end time.
// Times count from the machine's start and exceed any sum of waits, so the value is negative exactly while a wait is in
// progress; stats() then adds the current time. The sum is a single atomic, so a reader never sees half of an update.

// Waits until batch number_ is ready and accounts for the wait.
absl::Status Prefetcher::Impl::wait_for_batch(Clock::time_point entered) {
  const int64_t ready = count_ready();
  add(ready_count_, ready);
  if (ready > 0) return absl::OkStatus();

  const auto deadline = options_.timeout.count() > 0 ? entered + options_.timeout : Clock::time_point::max();
  const int64_t began = nanoseconds(entered);
  waits_since_.store(began, std::memory_order_relaxed);
  add(wait_nanoseconds_, -began);
  absl::Status status;
  while (status.ok() && !queue_->ready(number_)) {
    if (!read_in_consumer()) status = sleep_until_ready(deadline);
  }
  ready_end_ = status.ok() ? number_ + 1 : number_;
  const int64_t now = nanoseconds(Clock::now());
  longest_wait_nanoseconds_.store(std::max(longest_wait_nanoseconds_.load(std::memory_order_relaxed), now - began),
                                  std::memory_order_relaxed);
  waits_since_.store(0, std::memory_order_relaxed);
  add(wait_nanoseconds_, now);
  return status;
}

// Without workers: reads the next batch in the calling thread. Returns false with workers, or without a free slot.
bool Prefetcher::Impl::read_in_consumer() {
  if (!consumer_reader_ || consumer_reader_->free_slots() == 0) return false;
  const int64_t number = queue_->next.fetch_add(1, std::memory_order_relaxed);
  if (number >= queue_->end) return false;
  const auto start = Clock::now();
  consumer_reader_->read(*queue_, number);
  counters_->read_nanoseconds.fetch_add((Clock::now() - start).count(), std::memory_order_relaxed);
  return true;
}

absl::Status Prefetcher::Impl::sleep_until_ready(Clock::time_point deadline) {
  constexpr auto kLongestSleep = std::chrono::milliseconds(100);  // stop() does not wake the consumer
  detail::WorkerPoolState& state = pool_->state();
  state.awaited.store(number_, std::memory_order_seq_cst);
  absl::Status status;
  for (;;) {
    const uint32_t ticket = state.consumer.ticket();
    if (queue_->ready(number_)) break;
    status = stop_reason.get();
    if (!status.ok()) break;
    const Clock::time_point now = Clock::now();
    if (now >= deadline) {
      stalled_ = true;
      status = stalled();
      break;
    }
    state.consumer.wait(ticket, std::min(deadline, now + kLongestSleep));
  }
  state.awaited.store(-1, std::memory_order_relaxed);
  return status;
}

// Makes the error of a timeout: names the worker that claimed the batch, its row and the time since its read began.
absl::Status Prefetcher::Impl::stalled() const {
  const auto now = Clock::now();
  int worker = -1;
  detail::Reader::Reading reading;
  for (int i = 0; i < pool_->size(); ++i) {
    const auto each = pool_->worker(i).reading();
    if (each.row < 0) continue;
    // Prefer the worker that claimed the batch. If all are stuck in batches of another position, take the slowest.
    const bool claimed = each.queue == queue_.get() && each.begin <= number_ && number_ < each.end;
    if (claimed || worker < 0 || each.since < reading.since) {
      worker = i;
      reading = each;
    }
    if (claimed) break;
  }
  const auto plan = queue_->schedule.plan(number_);
  Error error{.exit_code = ExitCode::kStalledWorker,
              .id = "data.timeout",
              .field = "timeout",
              .problem = "no batch within " + std::to_string(options_.timeout.count()) + " ms (position " +
                         std::to_string(plan.begin) + " of epoch " + std::to_string(plan.epoch) + ")",
              .hint = "raise timeout if the storage is slow; use more workers to hide single slow rows"};
  if (worker >= 0) {
    error.field = "worker " + std::to_string(worker);
    error.problem = "stuck at " + batch_reader_->row_name(reading.row) + "; its batch was started " +
                    std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(now - reading.since).count()) +
                    " ms ago; " + error.problem;
  }
  return to_status(error, absl::StatusCode::kDeadlineExceeded);
}

PrefetcherStats Prefetcher::Impl::stats() const {
  int64_t waited = wait_nanoseconds_.load(std::memory_order_relaxed);
  const int64_t since = waits_since_.load(std::memory_order_relaxed);
  const int64_t now = waited < 0 || since > 0 ? nanoseconds(Clock::now()) : 0;
  if (waited < 0) waited += now;
  const int64_t longest =
      std::max(longest_wait_nanoseconds_.load(std::memory_order_relaxed), since > 0 ? now - since : 0);
  return {.batches = batch_count_.load(std::memory_order_relaxed),
          .rows = row_count_.load(std::memory_order_relaxed),
          .wait_seconds = 1e-9 * static_cast<double>(waited),
          .consumer_seconds = consumer_seconds_.load(std::memory_order_relaxed),
          .longest_wait_seconds = 1e-9 * static_cast<double>(longest),
          .copy_seconds = copy_seconds_.load(std::memory_order_relaxed),
          .read_seconds = 1e-9 * static_cast<double>(counters_->read_nanoseconds.load(std::memory_order_relaxed)),
          .ready_batches = ready_count_.load(std::memory_order_relaxed),
          .prefetch_factor = prefetch_factor_.load(std::memory_order_relaxed),
          .allocations = counters_->allocations.load(std::memory_order_relaxed)};
}

}  // namespace trainkit
