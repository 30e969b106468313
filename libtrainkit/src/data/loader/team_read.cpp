#include "data/loader/team_read.h"

#include <algorithm>
#include <stdexcept>

#include "data/loader/batch_reader.h"

namespace trainkit::detail {

void TeamRead::lead(const Dataset& dataset, std::span<const RowKey> keys, const BatchView& out, int64_t rows_per_part) {
  dataset_ = &dataset;
  keys_ = keys;
  out_ = &out;
  rows_per_part_ = rows_per_part;
  state_.store(kOffered, std::memory_order_seq_cst);
  state_changed_.wake();
  read_parts();
  close();
  note_reading_nothing();  // a timeout then names the readers that are still busy
  for (;;) {
    const uint32_t ticket = all_left_.ticket();
    if (joined_.load(std::memory_order_seq_cst) == 0) break;
    all_left_.wait(ticket);
  }
  if (failed_.load(std::memory_order_relaxed)) throw std::runtime_error("a row of the batch cannot be read");
}

void TeamRead::close() {
  state_.store(kClosed, std::memory_order_seq_cst);
  state_changed_.wake();
}

void TeamRead::join() {
  // Count first, then look. See Note [First batch].
  joined_.fetch_add(1, std::memory_order_seq_cst);
  for (;;) {
    const uint32_t ticket = state_changed_.ticket();
    const State state = state_.load(std::memory_order_seq_cst);
    if (state == kOffered) read_parts();
    if (state != kNotYet) break;
    state_changed_.wait(ticket);
  }
  if (joined_.fetch_sub(1, std::memory_order_seq_cst) == 1) all_left_.wake();
}

void TeamRead::read_parts() noexcept {
  const auto rows = static_cast<int64_t>(keys_.size());
  while (!failed_.load(std::memory_order_relaxed)) {
    const int64_t begin = next_.fetch_add(rows_per_part_, std::memory_order_relaxed);
    if (begin >= rows) return;
    const int64_t part = std::min(rows_per_part_, rows - begin);
    note_reading(keys_[begin]);
    try {
      dataset_->get_batch(keys_.subspan(begin, part), out_->slice(begin, part));
    } catch (...) {
      failed_.store(true, std::memory_order_relaxed);  // reading the rows one by one finds the cause
    }
  }
}

}  // namespace trainkit::detail
