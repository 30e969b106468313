#pragma once
// Rows that appenders are writing.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "rl/ring_counters.h"
#include "rl/row_ring.h"

namespace trainkit::detail {

/// The reservations that do not count as committed yet, in the order of their rows: each is being written, complete
/// behind one that is not, or given up. Guarded by the buffer's mutex.
class Reservations {
 public:
  /// Whether rows that were given up lie before others. Nothing may be reserved then, until close_gaps().
  bool has_gaps() const { return has_gaps_; }

  void add(RowRange rows) { open_.push_back({rows, State::kWriting}); }
  /// Notes that the rows that begin at `begin` are complete; advances `counters.committed` over all that are.
  void commit(int64_t begin, RingCounters& counters) {
    find(begin).state = State::kComplete;
    advance(counters);
  }
  /// Notes that the rows that begin at `begin` will not be complete. Takes them back if they are the last ones.
  void give_up(int64_t begin, RingCounters& counters) {
    find(begin).state = State::kGivenUp;
    while (!open_.empty() && open_.back().state == State::kGivenUp) {
      counters.reserved = open_.back().rows.begin;
      open_.pop_back();
    }
    has_gaps_ = std::any_of(open_.begin(), open_.end(), [](const Open& one) { return one.state == State::kGivenUp; });
  }
  /// Once nobody writes, moves complete rows over those that were given up before them.
  void close_gaps(RowRing& ring, RingCounters& counters) {
    const auto is_written = [](const Open& one) { return one.state == State::kWriting; };
    if (!has_gaps_ || std::any_of(open_.begin(), open_.end(), is_written)) return;
    for (const Open& one : open_) {
      if (one.state == State::kGivenUp) continue;
      for (int64_t row = one.rows.begin; row < one.rows.end; ++row) ring.move_row(row, counters.committed++);
    }
    counters.reserved = counters.committed;
    open_.clear();
    has_gaps_ = false;
  }

 private:
  enum class State { kWriting, kComplete, kGivenUp };
  struct Open {
    RowRange rows;
    State state;
  };

  Open& find(int64_t begin) {
    return *std::find_if(open_.begin(), open_.end(), [&](const Open& one) { return one.rows.begin == begin; });
  }
  void advance(RingCounters& counters) {
    size_t count = 0;
    while (count < open_.size() && open_[count].state == State::kComplete) counters.committed = open_[count++].rows.end;
    open_.erase(open_.begin(), open_.begin() + static_cast<int64_t>(count));
  }

  std::vector<Open> open_;
  bool has_gaps_ = false;
};

}  // namespace trainkit::detail
