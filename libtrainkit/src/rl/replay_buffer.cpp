#include "trainkit/rl/replay_buffer.h"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <condition_variable>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include "core/base/option_problems.h"
#include "data/loader/stop_reason.h"
#include "rl/batch_slots.h"
#include "rl/reservations.h"
#include "rl/ring_counters.h"
#include "rl/ring_snapshot.h"
#include "rl/row_gather.h"
#include "rl/row_ring.h"
#include "trainkit/core/error.h"
#include "trainkit/core/random.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

constexpr char kRowsFile[] = "rows";

absl::Status no_memory(int64_t rows, int64_t row_bytes) {
  return to_status({.exit_code = ExitCode::kOutOfMemory,
                    .id = "memory.exhausted",
                    .field = "ReplayBuffer",
                    .problem = fmt::format("{} rows of {} bytes do not fit into memory", rows, row_bytes),
                    .hint = "use a smaller capacity"},
                   absl::StatusCode::kResourceExhausted);
}

absl::Status wrong_batch(const std::string& problem) {
  return to_status({.exit_code = ExitCode::kData,
                    .id = "data.queue",
                    .field = "ReplayBuffer",
                    .problem = problem,
                    .hint = "append batches on the CPU with the fields of the buffer"});
}

}  // namespace

/// A ReplayBuffer without its interface.
class detail::ReplayRing {
 public:
  ReplayRing(std::vector<FieldSpec> fields, const ReplayBufferOptions& options)
      : fields_(std::move(fields)),
        rule_{.options = options, .slots = options.capacity + options.ahead},
        ring_(fields_, rule_.slots),
        batches_(fields_, options.batch_size),
        drawn_(static_cast<size_t>(options.batch_size)) {}

  const std::vector<FieldSpec>& fields() const { return fields_; }
  std::span<const BatchView::Field> blocks() const { return ring_.blocks(); }
  int64_t slots() const { return ring_.slots(); }

  absl::StatusOr<int64_t> reserve(int64_t rows);
  void commit(int64_t begin);
  void give_up(int64_t begin);
  absl::StatusOr<std::optional<Batch>> next();
  void stop(absl::Status reason);

  detail::RingCounters counters() const {
    const std::lock_guard lock(mutex_);
    return now_;
  }
  int64_t size() const { return std::min(rule_.options.capacity, kept().size()); }
  bool can_sample() const {
    const std::lock_guard lock(mutex_);
    return rule_.window(now_).size() > 0;
  }

  absl::Status load_state_dict(const StateDict& state);
  std::vector<PendingFile> files();
  absl::Status load_files(const std::map<std::string, ReadableFile>& files);

 private:
  template <class Condition>
  bool wait(std::unique_lock<std::mutex>& lock, std::condition_variable& changed, const Condition& condition);
  absl::Status timed_out(const std::string& problem) const;
  detail::RowRange kept() const {
    const std::lock_guard lock(mutex_);
    return rule_.kept(now_);
  }
  void draw(detail::RowRange window, int64_t k, std::span<int64_t> numbers);
  void wake_sampler();

  const std::vector<FieldSpec> fields_;
  const detail::RingRule rule_;
  detail::RowRing ring_;
  detail::BatchSlots batches_;
  std::vector<int64_t> drawn_;  // slots of the rows of a batch

  mutable std::mutex mutex_;  // guards the members below, not the rows
  std::condition_variable has_rows_, has_room_;
  detail::RingCounters now_;
  detail::Reservations reservations_;
  std::weak_ptr<detail::RingSnapshot> snapshot_;
  detail::StopReason stopped_;
};

/// Waits until `condition` or the end. Returns false at the timeout.
template <class Condition>
bool detail::ReplayRing::wait(std::unique_lock<std::mutex>& lock, std::condition_variable& changed,
                              const Condition& condition) {
  const auto is_due = [&] { return condition() || !stopped_.get().ok(); };
  if (rule_.options.timeout.count() > 0) return changed.wait_for(lock, rule_.options.timeout, is_due);
  changed.wait(lock, is_due);
  return true;
}

absl::Status detail::ReplayRing::timed_out(const std::string& problem) const {
  return to_status(
      {.exit_code = ExitCode::kStalledWorker,
       .id = "data.timeout",
       .field = "ReplayBuffer",
       .problem = fmt::format("{} within {} ms; {} rows appended, {} batches drawn; batch {} needs {} rows", problem,
                              rule_.options.timeout.count(), now_.committed, now_.batches, now_.batches,
                              rule_.needed(now_.batches)),
       .hint = "append rows and draw batches at the ratio of samples_per_insert; see can_sample() and ahead"},
      absl::StatusCode::kDeadlineExceeded);
}

absl::StatusOr<int64_t> detail::ReplayRing::reserve(int64_t rows) {
  if (rows < 1 || rows > rule_.options.ahead) {
    return to_status({.exit_code = ExitCode::kUsage,
                      .id = "data.options",
                      .field = "ReplayBuffer",
                      .problem = "cannot reserve this number of rows",
                      .got = std::to_string(rows),
                      .expected = fmt::format("1..{}", rule_.options.ahead),
                      .hint = "raise ReplayBufferOptions::ahead"},
                     absl::StatusCode::kInvalidArgument);
  }
  int64_t begin = 0;
  std::shared_ptr<detail::RingSnapshot> snapshot;
  {
    std::unique_lock lock(mutex_);
    const auto has_room = [&] { return !reservations_.has_gaps() && now_.reserved + rows <= rule_.limit(now_); };
    if (!wait(lock, has_room_, has_room)) return timed_out(fmt::format("no room for {} rows", rows));
    TRAINKIT_RETURN_IF_ERROR(stopped_.get());
    begin = now_.reserved;
    now_.reserved += rows;
    reservations_.add({begin, now_.reserved});
    if (snapshot_.use_count() > 0) snapshot = snapshot_.lock();
  }
  if (snapshot) snapshot->preserve(begin - rule_.slots, begin + rows - rule_.slots);
  return begin;
}

void detail::ReplayRing::wake_sampler() {
  if (now_.committed >= rule_.needed(now_.batches)) has_rows_.notify_one();
}

void detail::ReplayRing::commit(int64_t begin) {
  const std::lock_guard lock(mutex_);
  const int64_t before = now_.committed;
  reservations_.commit(begin, now_);
  if (reservations_.has_gaps()) reservations_.close_gaps(ring_, now_);
  if (now_.committed == before) return;
  wake_sampler();
  has_room_.notify_all();  // those that wait for a slower appender
}

void detail::ReplayRing::give_up(int64_t begin) {
  const std::lock_guard lock(mutex_);
  reservations_.give_up(begin, now_);
  reservations_.close_gaps(ring_, now_);
  wake_sampler();
  has_room_.notify_all();
}

/// Draws the rows of batch `k`: their numbers, and their slots.
void detail::ReplayRing::draw(detail::RowRange window, int64_t k, std::span<int64_t> numbers) {
  const int64_t first_slot = window.begin % rule_.slots;
  RandomStream random(hash_key(rule_.options.seed, k));
  for (size_t i = 0; i < drawn_.size(); ++i) {
    const auto offset = static_cast<int64_t>(random.below(static_cast<uint64_t>(window.size())));
    const int64_t slot = first_slot + offset;
    numbers[i] = window.begin + offset;
    drawn_[i] = slot < rule_.slots ? slot : slot - rule_.slots;
  }
}

absl::StatusOr<std::optional<Batch>> detail::ReplayRing::next() {
  detail::Slot& slot = batches_.next();
  slot.row_indices().resize(drawn_.size());  // nothing throws once rows are protected
  detail::RowRange window;
  int64_t k = 0;
  {
    std::unique_lock lock(mutex_);
    const auto has_rows = [&] { return (window = rule_.window(now_)).size() > 0; };
    if (!wait(lock, has_rows_, has_rows)) return timed_out("no batch");
    TRAINKIT_RETURN_IF_ERROR(stopped_.get());
    now_.gathering = window.begin;
    k = now_.batches;
  }
  draw(window, k, slot.row_indices());
  const BatchView view = slot.view();
  for (size_t f = 0; f < fields_.size(); ++f) {
    detail::gather_rows(ring_.blocks()[f].data, ring_.blocks()[f].row_bytes, drawn_, view.data(f));
  }
  {
    const std::lock_guard lock(mutex_);
    now_.gathering = -1;
    ++now_.batches;
    has_room_.notify_all();
  }
  return slot.lend(rule_.options.batch_size, /*padding_rows=*/0);
}

void detail::ReplayRing::stop(absl::Status reason) {
  const std::lock_guard lock(mutex_);
  stopped_.set(std::move(reason));
  has_rows_.notify_all();
  has_room_.notify_all();
}

absl::Status detail::ReplayRing::load_state_dict(const StateDict& state) {
  TRAINKIT_ASSIGN_OR_RETURN(const int64_t batches, get_state<int64_t>(state, "batches"));
  const std::lock_guard lock(mutex_);
  now_.batches = batches;
  return absl::OkStatus();
}

std::vector<PendingFile> detail::ReplayRing::files() {
  const std::lock_guard lock(mutex_);
  const detail::RowRange rows = rule_.kept(now_);
  const auto snapshot = std::make_shared<detail::RingSnapshot>(ring_, rows.begin, rows.end);
  snapshot_ = snapshot;
  std::vector<PendingFile> files;
  files.push_back({kRowsFile, snapshot->bytes(), [snapshot](WritableFile& file) { return snapshot->write(file); }});
  return files;
}

absl::Status detail::ReplayRing::load_files(const std::map<std::string, ReadableFile>& files) {
  const auto found = files.find(kRowsFile);
  if (found == files.end()) {
    return to_status({.exit_code = ExitCode::kWeights,
                      .id = "ckpt.source",
                      .field = "ReplayBuffer",
                      .problem = "the checkpoint has no rows of a replay buffer"},
                     absl::StatusCode::kInvalidArgument);
  }
  const std::lock_guard lock(mutex_);
  if (now_.reserved > 0) return absl::FailedPreconditionError("load a replay buffer before rows are appended");
  TRAINKIT_RETURN_IF_ERROR(detail::read_rows(found->second, ring_, now_.first, now_.committed));
  now_.reserved = now_.committed;
  has_rows_.notify_all();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ReplayBuffer>> ReplayBuffer::create(std::vector<FieldSpec> fields,
                                                                   const ReplayBufferOptions& options) {
  detail::OptionProblems problems;
  problems.require(!fields.empty(), "there must be at least one field")
      .require(options.capacity >= 1, "capacity", ">= 1", options.capacity)
      .require(options.batch_size >= 1, "batch_size", ">= 1", options.batch_size)
      .require(options.min_size >= 1 && options.min_size <= options.capacity, "min_size", "in [1, capacity]",
               options.min_size)
      .require(detail::finite_not_negative(options.samples_per_insert), "samples_per_insert", ">= 0 and finite",
               options.samples_per_insert)
      .require(options.ahead >= 1, "ahead", ">= 1", options.ahead)
      .require(options.timeout.count() >= 0, "timeout", ">= 0 ms", options.timeout.count());
  if (!problems.empty()) {
    return to_status({.exit_code = ExitCode::kUsage,
                      .id = "data.options",
                      .field = "ReplayBufferOptions",
                      .problem = problems.text()},
                     absl::StatusCode::kInvalidArgument);
  }
  int64_t row_bytes = 0;
  for (const FieldSpec& field : fields) row_bytes += field.row_bytes();
  try {
    return std::unique_ptr<ReplayBuffer>(
        new ReplayBuffer(std::make_unique<detail::ReplayRing>(std::move(fields), options)));
  } catch (const std::bad_alloc&) {
    return no_memory(options.capacity, row_bytes);
  }
}

ReplayBuffer::ReplayBuffer(std::unique_ptr<detail::ReplayRing> ring) : ring_(std::move(ring)) {}
ReplayBuffer::~ReplayBuffer() = default;

absl::StatusOr<ReplayRows> ReplayBuffer::reserve(int64_t rows) {
  TRAINKIT_ASSIGN_OR_RETURN(const int64_t begin, ring_->reserve(rows));
  ReplayRows reserved;
  reserved.owner_ = ring_.get();
  reserved.blocks_ = ring_->blocks().data();
  reserved.begin_ = begin;
  reserved.size_ = rows;
  reserved.slots_ = ring_->slots();
  reserved.first_ = begin % reserved.slots_;
  return reserved;
}

absl::Status ReplayBuffer::append(const Batch& batch) {
  if (&batch.fields() != &fields() && batch.fields() != fields()) return wrong_batch("the batch has other fields");
  std::vector<at::Tensor> tensors;
  for (const at::Tensor& tensor : batch.tensors()) {
    if (!tensor.is_cpu()) return wrong_batch("the batch is not on the CPU");
    tensors.push_back(tensor.contiguous());
  }
  TRAINKIT_ASSIGN_OR_RETURN(ReplayRows rows, reserve(batch.size()));
  const int64_t before_end = std::min(rows.size(), rows.slots_ - rows.first_);  // the rest begins at slot 0
  for (size_t f = 0; f < tensors.size(); ++f) {
    const int64_t row_bytes = rows.blocks_[f].row_bytes;
    const auto* from = static_cast<const std::byte*>(tensors[f].const_data_ptr());
    std::memcpy(rows.data(f, 0), from, static_cast<size_t>(before_end * row_bytes));
    if (before_end == rows.size()) continue;
    std::memcpy(rows.data(f, before_end), from + before_end * row_bytes,
                static_cast<size_t>((rows.size() - before_end) * row_bytes));
  }
  rows.commit();
  return absl::OkStatus();
}

int64_t ReplayBuffer::rows() const { return ring_->counters().committed; }
int64_t ReplayBuffer::batches() const { return ring_->counters().batches; }
int64_t ReplayBuffer::size() const { return ring_->size(); }
bool ReplayBuffer::can_sample() const { return ring_->can_sample(); }
absl::StatusOr<std::optional<Batch>> ReplayBuffer::next() { return ring_->next(); }
const std::vector<FieldSpec>& ReplayBuffer::fields() const { return ring_->fields(); }
void ReplayBuffer::stop(absl::Status reason) { ring_->stop(std::move(reason)); }
StateDict ReplayBuffer::state_dict() const { return {{"batches", batches()}}; }
absl::Status ReplayBuffer::load_state_dict(const StateDict& state) { return ring_->load_state_dict(state); }
std::vector<PendingFile> ReplayBuffer::files() { return ring_->files(); }
absl::Status ReplayBuffer::load_files(const std::map<std::string, ReadableFile>& files) {
  return ring_->load_files(files);
}

ReplayRows::ReplayRows(ReplayRows&& other) noexcept { *this = std::move(other); }

ReplayRows& ReplayRows::operator=(ReplayRows&& other) noexcept {
  if (this == &other) return *this;
  if (owner_) owner_->give_up(begin_);
  owner_ = std::exchange(other.owner_, nullptr);
  blocks_ = other.blocks_;
  begin_ = other.begin_;
  size_ = other.size_;
  first_ = other.first_;
  slots_ = other.slots_;
  return *this;
}

ReplayRows::~ReplayRows() {
  if (owner_) owner_->give_up(begin_);
}

void ReplayRows::commit() {
  TORCH_CHECK_VALUE(owner_, "these rows are committed already");
  std::exchange(owner_, nullptr)->commit(begin_);
}

}  // namespace trainkit
