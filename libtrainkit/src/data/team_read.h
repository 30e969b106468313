#pragma once
/// The first batch of a queue, read by all readers together: the consumer has nothing to do before it is there, so one
/// batch soon is worth more than one batch each later.

#include <atomic>
#include <span>

#include "data/futex.h"
#include "trainkit/data/dataset.h"

namespace trainkit::detail {

/// One batch, handed out to several threads a few rows at a time. Used once.
class TeamRead {
 public:
  /// By the reader whose batch it is: offers the rows to the team, reads along, and returns when all have been read and
  /// nobody is at work on them. `dataset`, `keys` and `out` need not outlive the call. Throws std::runtime_error if
  /// get_batch threw for any of the rows.
  void lead(const Dataset& dataset, std::span<const RowKey> keys, const BatchView& out, int64_t rows_per_part);

  /// By the same, whatever happened: nobody waits for the rows any more.
  void close();

  /// By any other reader: waits until the rows are offered, and reads parts of them until none is left.
  void join();

 private:
  void read_parts() noexcept;

  // What is offered; written before state_ says so.
  const Dataset* dataset_ = nullptr;
  std::span<const RowKey> keys_;
  const BatchView* out_ = nullptr;
  int64_t rows_per_part_ = 1;

  enum State { kNotYet, kOffered, kClosed };
  std::atomic<State> state_{kNotYet};
  std::atomic<int> joined_{0};
  std::atomic<int64_t> next_{0};
  std::atomic<bool> failed_{false};
  Futex offered_, left_;
};

}  // namespace trainkit::detail
