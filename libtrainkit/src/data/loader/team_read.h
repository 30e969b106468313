#pragma once
/// Reading of a queue's first batch by all readers together.

#include <atomic>
#include <span>

#include "data/loader/futex.h"
#include "trainkit/data/dataset.h"

namespace trainkit::detail {

// Note [First batch]
//
// Until the first batch of an epoch is ready the consumer is idle. All readers therefore read parts of it, and start
// with their own batches afterwards. The leader is the reader that claimed batch 0.
//
// - lead() writes dataset_, keys_, out_ and rows_per_part_, then stores state_ = kOffered. Readers take parts with
//   next_.fetch_add.
// - When no part is left, the leader stores kClosed and waits until joined_ is 0: it must not return while another
//   reader still writes rows or uses its keys.
// - join() increments joined_ before it loads state_. Both are sequentially consistent, so a reader that sees kOffered
//   was counted before the leader's check, and a reader that comes later sees kClosed.
// - If get_batch throws in any reader, failed_ is set and the leader throws. BatchReader then reads the batch row by
//   row, which finds the bad row and its cause.
// - close() ends the wait of the other readers if the leader never offers rows, for example after a cancel.

/// Distributes the rows of one batch to several threads, a few rows at a time. Used once. See Note [First batch].
class TeamRead {
 public:
  /// Called by the reader that claimed the batch. Offers the rows, reads some of them, and returns when all rows are
  /// read and no other reader works on them. `dataset`, `keys` and `out` need not outlive the call. Throws
  /// std::runtime_error if get_batch threw for any row.
  void lead(const Dataset& dataset, std::span<const RowKey> keys, const BatchView& out, int64_t rows_per_part);

  /// Called by the same reader in every case. Other readers no longer wait for the rows.
  void close();

  /// Called by every other reader. Waits until the rows are offered and reads parts until none is left.
  void join();

 private:
  void read_parts() noexcept;

  // The offered work; written before state_ becomes kOffered.
  const Dataset* dataset_ = nullptr;
  std::span<const RowKey> keys_;
  const BatchView* out_ = nullptr;
  int64_t rows_per_part_ = 1;

  enum State { kNotYet, kOffered, kClosed };
  std::atomic<State> state_{kNotYet};
  std::atomic<int> joined_{0};
  std::atomic<int64_t> next_{0};
  std::atomic<bool> failed_{false};
  Futex state_changed_, all_left_;
};

}  // namespace trainkit::detail
