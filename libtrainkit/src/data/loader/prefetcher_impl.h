#pragma once
// The parts of Prefetcher, shared by prefetcher.cpp (delivery), prefetcher_wait.cpp (waits and statistics) and
// prefetcher_state.cpp (saved position).

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "data/loader/device_copier.h"
#include "data/loader/stop_reason.h"
#include "data/loader/worker_pool.h"
#include "trainkit/data/prefetcher.h"

namespace trainkit {

/// The consumer's side: the position in the data and the batches lent to the caller.
class Prefetcher::Impl {
 public:
  /// Returns an Error that names all options out of range.
  static absl::Status check(const Dataset* dataset, const Sampler* sampler, const PrefetcherOptions& options);

  Impl(std::shared_ptr<const Dataset> dataset, std::shared_ptr<const Sampler> sampler,
       const PrefetcherOptions& options);
  ~Impl() { stop(); }

  absl::StatusOr<std::optional<Batch>> next();
  void go_to(int64_t epoch, int64_t position);
  bool use_devices(const std::vector<at::Device>& devices);
  absl::Status load_state_dict(const StateDict& state);
  StateDict state_dict() const;
  PrefetcherStats stats() const;
  ReaderTimes reader_times() const { return counters_->threads.sum(); }
  std::vector<BadSample> bad_samples() const;

  const Dataset& dataset() const { return batch_reader_->dataset(); }
  const Sampler& sampler() const { return batch_reader_->sampler(); }
  const PrefetcherOptions& options() const { return options_; }
  int64_t epoch() const { return epoch_; }
  int64_t batch_in_epoch() const {
    return at_epoch_end() ? batches_per_epoch() : position_ / options_.batch_size;  // the last batch may be smaller
  }
  int64_t batches_per_epoch() const { return schedule(0, 0).batches_per_epoch(); }
  bool at_epoch_end() const { return schedule(epoch_, position_).batches_in_first_epoch() == 0; }

  /// Why no batch follows any more: stop(), or too many bad rows.
  detail::StopReason stop_reason;

 private:
  using Clock = detail::Clock;

  static constexpr int kMaxPrefetchFactor = 64;  // the free slots of a reader are the bits of one word

  static double seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }
  static int64_t nanoseconds(Clock::time_point time) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
  }
  /// Adds to a counter that has one writer and any number of readers.
  template <class T>
  static void add(std::atomic<T>& sum, T value) {
    sum.store(sum.load(std::memory_order_relaxed) + value, std::memory_order_relaxed);
  }

  const std::string& rows_digest() const;
  detail::Schedule schedule(int64_t epoch, int64_t position) const {
    return {sampler().size(), options_.batch_size, options_.drop_last, epoch, position};
  }
  void prepare_memory();
  void start();
  void stop();
  absl::StatusOr<std::optional<Batch>> deliver();
  int64_t count_ready();
  absl::Status wait_for_batch(Clock::time_point entered);
  absl::Status sleep_until_ready(Clock::time_point deadline);
  absl::Status stalled() const;
  bool read_in_consumer();
  void reclaim_slots();
  bool maybe_lengthen_ring();
  absl::Status note_bad_samples(const detail::Slot& slot);
  void copy_ahead();

  PrefetcherOptions options_;
  std::vector<at::Device> devices_;  // to which batches are copied ahead
  const std::shared_ptr<const detail::BatchReader> batch_reader_;
  std::shared_ptr<const detail::SlotLayout> layout_;
  const std::shared_ptr<detail::Counters> counters_ = std::make_shared<detail::Counters>();
  std::optional<detail::DeviceCopier> copier_;

  // The pool and its queue; null until the first batch of an epoch is requested.
  std::optional<detail::WorkerPool> pool_;
  std::shared_ptr<detail::BatchQueue> queue_;
  std::shared_ptr<detail::Reader> consumer_reader_;  // without workers: reads in the consumer's thread
  bool stalled_ = false;                             // a worker did not respond within the timeout

  // The next batch: its number in the queue, its epoch and its position in rows.
  int64_t number_ = 0;
  int64_t epoch_ = 0;
  int64_t position_ = 0;
  int64_t ready_end_ = 0;  // batches before this number are known to be ready
  std::deque<detail::RingSlot*> lent_;

  mutable std::optional<std::string> rows_digest_;
  mutable std::mutex bad_mutex_;
  std::vector<BadSample> bad_;  // guarded by bad_mutex_
  std::unordered_set<int64_t> bad_rows_;

  Clock::time_point last_return_{};  // time of the last return of next()
  std::atomic<int> prefetch_factor_;
  PrefetcherStats epoch_start_;

  std::atomic<int64_t> batch_count_{0}, row_count_{0}, ready_count_{0};
  std::atomic<double> consumer_seconds_{0}, copy_seconds_{0};
  // See Note [Wait accounting].
  std::atomic<int64_t> wait_nanoseconds_{0};
  std::atomic<int64_t> waits_since_{0}, longest_wait_nanoseconds_{0};  // 0 if the consumer does not wait
};

}  // namespace trainkit
