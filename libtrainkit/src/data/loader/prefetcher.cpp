#include "trainkit/data/prefetcher.h"

#include <ATen/Context.h>

#include <algorithm>
#include <optional>
#include <string>
#include <system_error>

#include "core/base/option_problems.h"
#include "data/loader/prefetcher_impl.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

// adaptive_prefetch: thresholds of the consumer's wait and of the readers' work, and the new prefetch factor.
constexpr double kMinWaitFraction = 0.05, kMaxBusyFraction = 0.8;
constexpr int64_t kMinBatches = 10;
constexpr int kLongPrefetchFactor = 4;

}  // namespace

absl::Status Prefetcher::Impl::check(const Dataset* dataset, const Sampler* sampler, const PrefetcherOptions& options) {
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

Prefetcher::Impl::Impl(std::shared_ptr<const Dataset> dataset, std::shared_ptr<const Sampler> sampler,
                       const PrefetcherOptions& options)
    : options_(options),
      devices_{options.device},
      batch_reader_(std::make_shared<detail::BatchReader>(dataset, std::move(sampler), options.on_error,
                                                          options.max_bad_samples)),
      prefetch_factor_(options.prefetch_factor) {
  prepare_memory();
}

void Prefetcher::Impl::prepare_memory() {
  const bool copies = devices_.front().is_cuda();
  const bool pin = (options_.pin_memory || copies) && at::hasCUDA();
  const int64_t rows = std::clamp<int64_t>(sampler().size(), 0, options_.batch_size);  // of the largest batch
  layout_ = std::make_shared<detail::SlotLayout>(dataset().fields(), rows, pin);
  copier_.reset();
  if (copies) copier_.emplace(devices_);
}

bool Prefetcher::Impl::use_devices(const std::vector<at::Device>& devices) {
  TORCH_CHECK_VALUE(!devices.empty(), "Prefetcher: use_devices needs a device");
  if (devices == devices_) return true;
  if (pool_) return false;
  devices_ = devices;
  options_.device = devices.size() == 1 ? devices.front() : at::Device(at::kCPU);
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
  state->workers = options_.num_workers;
  pool_.emplace(state);
  pool_->set_queue(queue_);
  if (options_.num_workers == 0) consumer_reader_ = std::make_shared<detail::Reader>(state, /*num_slots=*/2);
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
  TRAINKIT_RETURN_IF_ERROR(stop_reason.get());
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
  stop_reason.set(to_status({.exit_code = ExitCode::kData,
                             .id = "data.budget",
                             .field = "max_bad_samples",
                             .problem = "too many rows could not be read; the last one is " +
                                        batch_reader_->row_name(bad_.back().index) + ": " + bad_.back().cause,
                             .got = std::to_string(count),
                             .expected = "at most " + std::to_string(options_.max_bad_samples)},
                            absl::StatusCode::kDataLoss));
  return stop_reason.get();
}

std::vector<BadSample> Prefetcher::Impl::bad_samples() const {
  const std::lock_guard lock(bad_mutex_);
  return bad_;
}

// ---- Prefetcher

absl::StatusOr<std::unique_ptr<Prefetcher>> Prefetcher::create(std::shared_ptr<const Dataset> dataset,
                                                               std::shared_ptr<const Sampler> sampler,
                                                               const PrefetcherOptions& options) {
  TRAINKIT_RETURN_IF_ERROR(Impl::check(dataset.get(), sampler.get(), options));
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
void Prefetcher::stop(absl::Status reason) { impl_->stop_reason.set(std::move(reason)); }

bool Prefetcher::use_devices(const std::vector<at::Device>& devices) { return impl_->use_devices(devices); }

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
