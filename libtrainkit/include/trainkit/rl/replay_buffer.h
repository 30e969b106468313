#pragma once
/// Rows that a program makes while it trains on samples of them.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trainkit/data/batch_source.h"

namespace trainkit {

namespace detail {
class ReplayRing;
}

struct ReplayBufferOptions {
  /// Rows from which a batch is drawn: the newest ones. At least 1.
  int64_t capacity = 0;
  /// Rows of a batch.
  int64_t batch_size = 256;
  /// Rows before the first batch; 1 <= min_size <= capacity.
  int64_t min_size = 1;
  /// How often each row is drawn on average. Batch k (0, 1, ...) is then drawn from the newest `capacity` of exactly
  /// the first n(k) = min_size + floor(k * batch_size / samples_per_insert) rows, so next() waits for rows, and
  /// appenders wait for batches. 0: from the rows that are there; nobody waits, and a resumed run may differ.
  double samples_per_insert = 0;
  /// Rows that may be appended before a batch needs them. Memory holds capacity + ahead rows. At least 1.
  int64_t ahead = 1024;
  /// Random seed of the batches.
  uint64_t seed = 0;
  /// Longest wait of next(), reserve() and append(); zero means unlimited.
  std::chrono::milliseconds timeout{0};
};

/// Rows of a ReplayBuffer that one thread writes in place. Move-only. Rows that are not committed when the object ends
/// are given up: no batch contains them.
class ReplayRows {
 public:
  ReplayRows(ReplayRows&& other) noexcept;
  ReplayRows& operator=(ReplayRows&& other) noexcept;
  ~ReplayRows();

  int64_t size() const { return size_; }
  /// Memory of row `row` of field `field`, in the order of fields(): the elements of its shape, contiguous and
  /// uninitialised. Write every byte.
  std::byte* data(size_t field, int64_t row) const {
    int64_t slot = first_ + row;
    if (slot >= slots_) slot -= slots_;
    return blocks_[field].data + slot * blocks_[field].row_bytes;
  }
  /// The same as elements of type T, which must be the field's dtype.
  template <class T>
  T* row(size_t field, int64_t row) const {
    return reinterpret_cast<T*>(data(field, row));
  }
  /// Makes the rows visible, all of them at once and after those that were reserved before. Do not write them any more.
  void commit();

 private:
  friend class ReplayBuffer;
  ReplayRows() = default;

  detail::ReplayRing* owner_ = nullptr;  // null: committed, or moved from
  const BatchView::Field* blocks_ = nullptr;
  int64_t begin_ = 0, size_ = 0, first_ = 0, slots_ = 0;
};

/// A ring of rows with uniform sampling. It has no epochs: train with max_steps.
///
///   auto buffer = ReplayBuffer::create({{"obs", at::kFloat, {3}}, {"reward", at::kFloat, {}}},
///                                      {.capacity = 100'000, .min_size = 1'000, .samples_per_insert = 256}).value();
///   std::thread robot([&] {
///     for (auto rows = buffer->reserve(1); rows.ok(); rows = buffer->reserve(1)) {
///       observe(rows->row<float>(0, 0), rows->row<float>(1, 0));
///       rows->commit();
///     }
///   });
///   auto result = trainer.fit(*buffer, loss).value();
///   buffer->stop(absl::CancelledError("end of training"));
///
/// Memory: one block per field, which create() allocates; the system provides its pages when rows are first written.
/// Appending allocates nothing. Batches are on the CPU and are copied to the devices as those of other sources. To
/// append millions of rows per second from several threads, reserve several rows at a time.
///
/// Threads: any number of threads append; one takes batches. A row is never seen half written. With samples_per_insert
/// a batch depends on the first n(k) rows alone, and the rows drawn on (seed, k) alone; Batch::row_indices() has their
/// numbers. An appender waits before it overwrites a row that the next batch may contain. In a thread that appends and
/// steps, call next() only when can_sample(), and append at most `ahead` rows between.
///
/// Checkpoints contain the rows as plain files, one set per rank, that the background save copies in segments of 64
/// MiB: appenders wait at most for the segment that is being copied. A run in which one thread appends and steps
/// resumes with the same bits; with more threads it has the same rows and counters, and the order of new rows is not
/// promised.
class ReplayBuffer final : public BatchSource {
 public:
  /// Returns an error of exit code 2 if options are out of range or there are no fields; of exit code 7 if there is not
  /// enough memory.
  static absl::StatusOr<std::unique_ptr<ReplayBuffer>> create(std::vector<FieldSpec> fields,
                                                              const ReplayBufferOptions& options);
  ~ReplayBuffer() override;

  /// Reserves `rows` rows to write in place; waits for room. Any thread. Commit or end a thread's rows before it
  /// reserves again. Errors: exit code 2 if `rows` is not in [1, ahead]; exit code 10 (kDeadlineExceeded) names rows
  /// and batches so far if there was no room within `timeout`; the reason of stop().
  absl::StatusOr<ReplayRows> reserve(int64_t rows);
  /// Copies the rows of a batch on the CPU with the same fields. Any number of rows that reserve() takes; any thread.
  /// Errors: those of reserve(); exit code 4 if the fields differ.
  absl::Status append(const Batch& batch);

  /// Rows committed so far, of all time, and batches drawn so far. Any thread.
  int64_t rows() const;
  int64_t batches() const;
  /// Rows that are kept now: at most capacity.
  int64_t size() const;
  /// Whether next() would return a batch without waiting. Any thread.
  bool can_sample() const;

  /// Draws batch_size rows with replacement. Error of exit code 10 (kDeadlineExceeded): the rows were not there within
  /// `timeout`.
  absl::StatusOr<std::optional<Batch>> next() override;
  const std::vector<FieldSpec>& fields() const override;
  /// Also wakes reserve() and append().
  void stop(absl::Status reason) override;

  /// State: "batches" so far. The rows are in files(). A buffer is restored before rows are appended to it.
  StateDict state_dict() const override;
  absl::Status load_state_dict(const StateDict& state) override;
  std::vector<PendingFile> files() override;
  absl::Status load_files(const std::map<std::string, ReadableFile>& files) override;

 private:
  explicit ReplayBuffer(std::unique_ptr<detail::ReplayRing> ring);
  std::unique_ptr<detail::ReplayRing> ring_;
};

}  // namespace trainkit
