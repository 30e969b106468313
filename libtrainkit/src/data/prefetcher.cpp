#include "trainkit/data/prefetcher.h"

#include <ATen/Context.h>

#include <algorithm>
#include <cstddef>
#include <deque>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>
#include <unordered_set>

#include "core/option_problems.h"
#include "data/device_copier.h"
#include "data/worker_pool.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"

namespace trainkit {

using detail::Clock;

namespace {

constexpr int kMaxPrefetchFactor = 64;  // the free slots of a reader are the bits of one word

// adaptive_prefetch: thresholds of the consumer's wait and of the readers' work, and the new prefetch factor.
constexpr double kMinWaitFraction = 0.05, kMaxBusyFraction = 0.8;
constexpr int64_t kMinBatches = 10;
constexpr int kLongPrefetchFactor = 4;
constexpr size_t kDigestDigits = 32;

/// Returns a digest of the fields, followed by one of three rows (first, middle, last) read without an augmentation
/// seed. Data sets with other contents have other digests. Empty if a row cannot be read.
std::string digest_of_rows(const Dataset& dataset) try {
  std::vector<std::vector<std::byte>> memory;
  std::vector<BatchView::Field> fields;
  for (const FieldSpec& field : dataset.fields()) memory.emplace_back(field.row_bytes());
  for (std::vector<std::byte>& bytes : memory) {
    fields.push_back({.data = bytes.data(), .row_bytes = static_cast<int64_t>(bytes.size())});
  }
  std::ostringstream field_list;
  for (const FieldSpec& field : dataset.fields()) field_list << field << "\n";
  Digest digest;
  for (const int64_t index : {int64_t{0}, dataset.size() / 2, dataset.size() - 1}) {
    for (std::vector<std::byte>& bytes : memory) std::fill(bytes.begin(), bytes.end(), std::byte{});
    const RowKey key{.index = index, .origin = index};
    dataset.get_batch({&key, 1}, BatchView(fields, 1));
    for (const std::vector<std::byte>& bytes : memory) digest.update(bytes.data(), bytes.size());
  }
  return Digest::of(field_list.str()) + digest.hex();
} catch (...) {
  return {};  // next() reports the bad row when it reaches it
}

absl::Status check(const Dataset* dataset, const Sampler* sampler, const PrefetcherOptions& options) {
  detail::OptionProblems problems;
  problems.require(dataset != nullptr, "the dataset must not be null")
      .require(sampler != nullptr, "the sampler must not be null")
      .require(options.batch_size >= 1, "batch_size", ">= 1", options.batch_size)
      .require(options.num_workers >= 0 && options.num_workers <= 1024, "num_workers", "in 0..1024",
               options.num_workers)
      .require(options.prefetch_factor >= 1 && options.prefetch_factor <= kMaxPrefetchFactor, "prefetch_factor",
               "in 1.." + std::to_string(kMaxPrefetchFactor), options.prefetch_factor)
      .require(options.timeout.count() >= 0, "timeout", ">= 0 ms", options.timeout.count())
      .require(options.max_bad_samples >= -1, "max_bad_samples", ">= -1", options.max_bad_samples)
      .require(options.device.is_cpu() || options.device.is_cuda(), "device", "cpu or cuda", options.device)
      .require(!options.device.is_cuda() || at::hasCUDA(),
               "device is " + options.device.str() + ", but LibTorch finds no CUDA device");
  if (problems.empty()) return absl::OkStatus();
  return to_status(
      {.exit_code = ExitCode::kUsage, .id = "data.options", .field = "PrefetcherOptions", .problem = problems.text()},
      absl::StatusCode::kInvalidArgument);
}

double seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

int64_t nanoseconds(Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

// Adds to a counter that has one writer and any number of readers.
template <class T>
void add(std::atomic<T>& sum, T value) {
  sum.store(sum.load(std::memory_order_relaxed) + value, std::memory_order_relaxed);
}

}  // namespace

/// The consumer's side: the position in the data and the batches lent to the caller.
class Prefetcher::Impl {
 public:
  Impl(std::shared_ptr<const Dataset> dataset, std::shared_ptr<const Sampler> sampler,
       const PrefetcherOptions& options);
  ~Impl() { stop(); }

  absl::StatusOr<std::optional<Batch>> next();
  void go_to(int64_t epoch, int64_t position);
  bool use_device(at::Device device);
  absl::Status load_state_dict(const StateDict& state);
  StateDict state_dict() const;
  PrefetcherStats stats() const;
  ReaderTimes reader_times() const { return counters_->threads.sum(); }
  std::vector<BadSample> bad_samples() const;

  const Dataset& dataset() const { return batch_reader_->dataset(); }
  const Sampler& sampler() const { return batch_reader_->sampler(); }
  const PrefetcherOptions& options() const { return options_; }
  int64_t epoch() const { return epoch_; }
  int64_t batch_in_epoch() const { return position_ / options_.batch_size; }
  int64_t batches_per_epoch() const { return schedule(0, 0).batches_per_epoch(); }
  bool at_epoch_end() const { return schedule(epoch_, position_).batches_in_first_epoch() == 0; }

 private:
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
  const std::shared_ptr<const detail::BatchReader> batch_reader_;
  std::shared_ptr<const detail::SlotLayout> layout_;
  const std::shared_ptr<detail::Counters> counters_ = std::make_shared<detail::Counters>();
  std::optional<detail::DeviceCopier> copier_;

  // The pool and its queue; null until the first batch of an epoch is requested.
  std::optional<detail::WorkerPool> pool_;
  std::shared_ptr<detail::BatchQueue> queue_;
  std::shared_ptr<detail::Reader> consumer_reader_;  // reads in the consumer's thread, with its own slots
  bool stalled_ = false;                             // a worker did not respond within the timeout

  // The next batch: its number in the queue, its epoch and its position in rows.
  int64_t number_ = 0;
  int64_t epoch_ = 0;
  int64_t position_ = 0;
  int64_t ready_end_ = 0;  // batches before this number are known to be ready
  std::deque<detail::RingSlot*> lent_;

  absl::Status budget_error_;
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

Prefetcher::Impl::Impl(std::shared_ptr<const Dataset> dataset, std::shared_ptr<const Sampler> sampler,
                       const PrefetcherOptions& options)
    : options_(options),
      batch_reader_(std::make_shared<detail::BatchReader>(dataset, std::move(sampler), options.on_error,
                                                          options.max_bad_samples)),
      prefetch_factor_(options.prefetch_factor) {
  prepare_memory();
}

void Prefetcher::Impl::prepare_memory() {
  const bool pin = (options_.pin_memory || options_.device.is_cuda()) && at::hasCUDA();
  layout_ = std::make_shared<detail::SlotLayout>(dataset().fields(), options_.batch_size, pin);
  copier_.reset();
  if (options_.device.is_cuda()) copier_.emplace(options_.device);
}

bool Prefetcher::Impl::use_device(at::Device device) {
  if (device == options_.device) return true;
  if (pool_) return false;
  options_.device = device;
  prepare_memory();
  return true;
}

// Starts the threads (if there are any) at the current position.
void Prefetcher::Impl::start() {
  const auto plan = schedule(epoch_, position_);
  const int64_t end = options_.persistent_workers ? plan.end() : plan.batches_in_first_epoch();
  const int64_t slots = int64_t{kMaxPrefetchFactor} * (options_.num_workers + 1);
  queue_ = std::make_shared<detail::BatchQueue>(plan, end, slots);
  number_ = ready_end_ = 0;
  if (pool_) return pool_->set_queue(queue_);

  // The consumer holds one batch, and perhaps the one before it, while the next is read.
  const int per_worker = std::max(prefetch_factor_.load(), options_.num_workers == 1 ? 2 : 1);
  auto state = std::make_shared<detail::WorkerPoolState>(batch_reader_, layout_, counters_);
  state->readers = options_.num_workers + (options_.consumer_assist ? 1 : 0);
  pool_.emplace(state);
  pool_->set_queue(queue_);
  const bool reads = options_.num_workers == 0 || options_.consumer_assist;
  if (reads)
    consumer_reader_ = std::make_shared<detail::Reader>(state, std::max(2, options_.num_workers == 0 ? 2 : per_worker));
  pool_->start(options_.num_workers, per_worker);
}

// Stops the threads and releases their memory, except what the consumer still holds.
void Prefetcher::Impl::stop() {
  if (copier_) copier_->discard();
  lent_.clear();
  pool_.reset();
  consumer_reader_.reset();
  queue_.reset();
  stalled_ = false;
}

void Prefetcher::Impl::go_to(int64_t epoch, int64_t position) {
  epoch_ = epoch;
  position_ = position;
  if (!queue_) return;
  if (stalled_ || !options_.persistent_workers) return stop();  // a stuck worker is detached
  if (copier_) {
    if (auto* slot = copier_->discard()) lent_.push_back(slot);
  }
  for (auto* slot : queue_->cancel()) slot->owner->give_back(slot);
  queue_.reset();
}

absl::StatusOr<std::optional<Batch>> Prefetcher::Impl::next() {
  const auto entered = Clock::now();
  if (last_return_ != Clock::time_point{}) add(consumer_seconds_, seconds(entered - last_return_));
  auto batch = deliver();
  last_return_ = Clock::now();
  return batch;
}

absl::StatusOr<std::optional<Batch>> Prefetcher::Impl::deliver() {
  if (!budget_error_.ok()) return budget_error_;
  reclaim_slots();
  for (;;) {
    if (at_epoch_end()) {
      ++epoch_;
      position_ = 0;
      if (maybe_lengthen_ring() || !options_.persistent_workers) stop();
      return std::nullopt;
    }
    if (!queue_) {
      try {
        start();
      } catch (const std::system_error& error) {
        stop();
        return to_status({.exit_code = ExitCode::kData,
                          .id = "data.threads",
                          .field = "num_workers",
                          .problem = std::string("a worker thread could not be started: ") + error.what(),
                          .got = std::to_string(options_.num_workers),
                          .hint = "use fewer workers"},
                         absl::StatusCode::kResourceExhausted);
      }
    }
    detail::RingSlot* ring_slot = copier_ ? copier_->slot() : nullptr;
    const bool copied = ring_slot != nullptr;
    if (copied) {
      ready_end_ = std::max(ready_end_, number_ + 1);
      add(ready_count_, count_ready());
    } else {
      TRAINKIT_RETURN_IF_ERROR(wait_for_batch(Clock::now()));
      ring_slot = queue_->take(number_);
      pool_->restore_num_threads();
    }
    detail::Slot& slot = ring_slot->slot;
    position_ += queue_->schedule.plan(number_).rows;
    ++number_;
    absl::Status status = note_bad_samples(slot);
    if (status.ok()) status = slot.status;
    if (!status.ok() || slot.rows_read == 0) {
      ring_slot->owner->give_back(ring_slot);
      if (!status.ok()) return status;
      if (sampler().world_size() > 1) return std::optional(Batch());
      continue;  // all rows were skipped
    }
    lent_.push_back(ring_slot);
    add<int64_t>(batch_count_, 1);
    add(row_count_, slot.rows_read);
    if (!copier_) return std::optional<Batch>(slot.lend(slot.rows_read, slot.padding_rows));
    const auto copying = Clock::now();
    if (!copied) copier_->begin(ring_slot);
    Batch batch = copier_->finish();
    copy_ahead();
    add(copy_seconds_, seconds(Clock::now() - copying));
    return std::optional<Batch>(std::move(batch));
  }
}

// Starts to copy the next batch to the device if it is ready and has no error. See Note [Copy ahead].
void Prefetcher::Impl::copy_ahead() {
  if (!queue_->ready(number_)) return;
  const detail::Slot& slot = queue_->peek(number_)->slot;
  if (slot.status.ok() && slot.rows_read > 0 && slot.bad_samples.empty()) copier_->begin(queue_->take(number_));
}

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

// Reads the next unclaimed batch in the calling thread. Returns false if the consumer does not read or has no free
// slot.
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
  detail::WorkerPoolState& state = pool_->state();
  state.awaited.store(number_, std::memory_order_seq_cst);
  absl::Status status;
  for (;;) {
    const uint32_t ticket = state.consumer.ticket();
    if (queue_->ready(number_)) break;
    if (Clock::now() >= deadline) {
      stalled_ = true;
      status = stalled();
      break;
    }
    state.consumer.wait(ticket, deadline);
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

// Returns the slots of batches that the consumer has finished with. If a batch is still referenced after the next one
// was delivered, the caller has kept it: its memory stays with the caller. See Note [Slot reuse].
void Prefetcher::Impl::reclaim_slots() {
  for (auto it = lent_.begin(); it != lent_.end();) {
    detail::RingSlot* slot = *it;
    const bool is_kept = lent_.end() - it > 1;
    if (!copier_) slot->slot.expect_copies_of_caller();
    if (!slot->slot.released()) {
      if (!is_kept) break;
      slot->slot.finish_copies();
      if (!slot->slot.released()) slot->slot.abandon();
    }
    slot->owner->give_back(slot);
    it = lent_.erase(it);
  }
}

// At the end of an epoch: returns true if the ring ran dry although the workers had idle time, and lengthens the ring.
// The ring's length does not affect which batches are delivered.
bool Prefetcher::Impl::maybe_lengthen_ring() {
  if (!options_.adaptive_prefetch || options_.num_workers == 0 || prefetch_factor_ >= kLongPrefetchFactor) return false;
  const PrefetcherStats now = stats(), before = std::exchange(epoch_start_, now);
  const double waited = now.wait_seconds - before.wait_seconds;
  const double passed = waited + now.consumer_seconds - before.consumer_seconds;
  const bool dry = now.batches - before.batches >= kMinBatches && waited > kMinWaitFraction * passed;
  const bool idle = now.read_seconds - before.read_seconds < kMaxBusyFraction * options_.num_workers * passed;
  if (dry && idle) prefetch_factor_ = kLongPrefetchFactor;
  return dry && idle;
}

// Records new bad rows. Returns an error, then and on every later call of next(), if there are more than
// max_bad_samples.
absl::Status Prefetcher::Impl::note_bad_samples(const detail::Slot& slot) {
  for (const BadSample& bad : slot.bad_samples) {
    if (!bad_rows_.insert(bad.index).second) continue;
    const std::lock_guard lock(bad_mutex_);
    bad_.push_back(bad);
  }
  const auto count = static_cast<int64_t>(bad_rows_.size());
  if (options_.on_error == OnError::kFail || options_.max_bad_samples < 0 || count <= options_.max_bad_samples) {
    return absl::OkStatus();
  }
  budget_error_ = to_status({.exit_code = ExitCode::kData,
                             .id = "data.budget",
                             .field = "max_bad_samples",
                             .problem = "too many rows could not be read; the last one is " +
                                        batch_reader_->row_name(bad_.back().index) + ": " + bad_.back().cause,
                             .got = std::to_string(count),
                             .expected = "at most " + std::to_string(options_.max_bad_samples)},
                            absl::StatusCode::kDataLoss);
  return budget_error_;
}

StateDict Prefetcher::Impl::state_dict() const {
  return {{"epoch", epoch_},
          {"rows", at_epoch_end() ? sampler().epoch_size() : position_ * sampler().world_size()},
          {"seed", static_cast<int64_t>(sampler().seed())},
          {"size", dataset().size()},
          {"digest", rows_digest()}};
}

const std::string& Prefetcher::Impl::rows_digest() const {
  if (!rows_digest_) rows_digest_ = dataset().size() > 0 ? digest_of_rows(dataset()) : "";
  return *rows_digest_;
}

absl::Status Prefetcher::Impl::load_state_dict(const StateDict& state) {
  TRAINKIT_ASSIGN_OR_RETURN(const int64_t epoch, get_state<int64_t>(state, "epoch"));
  TRAINKIT_ASSIGN_OR_RETURN(const int64_t rows, get_state<int64_t>(state, "rows"));
  TRAINKIT_ASSIGN_OR_RETURN(const int64_t seed, get_state<int64_t>(state, "seed"));
  TRAINKIT_ASSIGN_OR_RETURN(const int64_t size, get_state<int64_t>(state, "size"));
  const auto digest = get_state<std::string>(state, "digest");  // missing in older checkpoints
  const auto refuse = [](std::string field, std::string problem, std::string got, std::string expected,
                         std::string hint) {
    return to_status({.exit_code = ExitCode::kWeights,
                      .id = "checkpoint.data",
                      .field = std::move(field),
                      .problem = std::move(problem),
                      .got = std::move(got),
                      .expected = std::move(expected),
                      .hint = std::move(hint)},
                     absl::StatusCode::kInvalidArgument);
  };
  const int64_t world = sampler().world_size();
  if (size != dataset().size()) {
    return refuse("size", "the checkpoint was made with another data set", std::to_string(size),
                  std::to_string(dataset().size()) + " rows",
                  "resume with the data set of the run, or start a new run from its weights");
  }
  // Compare rows only if the fields agree: other fields (pixels instead of patches) give other bytes for the same rows.
  if (digest.ok() && !digest->empty() && *digest != rows_digest() &&
      digest->substr(0, kDigestDigits) == rows_digest().substr(0, kDigestDigits)) {
    return refuse("digest", "the checkpoint was made with other rows", *digest, rows_digest(),
                  "resume with the data set of the run, or start a new run from its weights");
  }
  if (seed != static_cast<int64_t>(sampler().seed())) {
    return refuse("seed", "the checkpoint was made with another order of rows", std::to_string(seed),
                  std::to_string(static_cast<int64_t>(sampler().seed())), "resume with the seed of the run");
  }
  if (epoch < 0) return refuse("epoch", "out of range", std::to_string(epoch), ">= 0", "");
  const int64_t whole = sampler().epoch_size();
  if (rows < 0 || rows > whole)
    return refuse("rows", "out of range", std::to_string(rows), "0.." + std::to_string(whole), "");
  if (rows < whole && rows % world != 0) {
    return refuse("rows", "the position in the epoch is not a multiple of the world size", std::to_string(rows),
                  "a multiple of " + std::to_string(world),
                  "resume with the original number of ranks, or a divisor of it");
  }
  go_to(epoch, rows < whole ? rows / world : sampler().size());
  return absl::OkStatus();
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

std::vector<BadSample> Prefetcher::Impl::bad_samples() const {
  const std::lock_guard lock(bad_mutex_);
  return bad_;
}

// ---- Prefetcher

absl::StatusOr<std::unique_ptr<Prefetcher>> Prefetcher::create(std::shared_ptr<const Dataset> dataset,
                                                               std::shared_ptr<const Sampler> sampler,
                                                               const PrefetcherOptions& options) {
  TRAINKIT_RETURN_IF_ERROR(check(dataset.get(), sampler.get(), options));
  try {
    return std::unique_ptr<Prefetcher>(
        new Prefetcher(std::make_unique<Impl>(std::move(dataset), std::move(sampler), options)));
  } catch (...) {
    return status_from_current_exception();
  }
}

Prefetcher::Prefetcher(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Prefetcher::~Prefetcher() = default;

absl::StatusOr<std::optional<Batch>> Prefetcher::next() { return impl_->next(); }

bool Prefetcher::use_device(at::Device device) { return impl_->use_device(device); }

void Prefetcher::seek(int64_t epoch, int64_t batch) {
  TORCH_CHECK_INDEX(epoch >= 0 && batch >= 0 && batch <= batches_per_epoch(), "Prefetcher: no batch ", batch,
                    " in epoch ", epoch, "; there are ", batches_per_epoch(), " batches in an epoch");
  impl_->go_to(epoch, std::min(batch * options().batch_size, sampler().size()));
}

int64_t Prefetcher::epoch() const { return impl_->epoch(); }
int64_t Prefetcher::position() const { return impl_->batch_in_epoch(); }
int64_t Prefetcher::batches_per_epoch() const { return impl_->batches_per_epoch(); }
bool Prefetcher::at_epoch_end() const { return impl_->at_epoch_end(); }
const Dataset& Prefetcher::dataset() const { return impl_->dataset(); }
const Sampler& Prefetcher::sampler() const { return impl_->sampler(); }
const PrefetcherOptions& Prefetcher::options() const { return impl_->options(); }
PrefetcherStats Prefetcher::stats() const { return impl_->stats(); }
ReaderTimes Prefetcher::reader_times() const { return impl_->reader_times(); }
std::vector<BadSample> Prefetcher::bad_samples() const { return impl_->bad_samples(); }
StateDict Prefetcher::state_dict() const { return impl_->state_dict(); }
absl::Status Prefetcher::load_state_dict(const StateDict& state) { return impl_->load_state_dict(state); }

}  // namespace trainkit
