#pragma once
// Which rows a replay buffer keeps, draws and may overwrite.

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "trainkit/rl/replay_buffer.h"

namespace trainkit::detail {

// Note [Rows of a draw]
// ~~~~~~~~~~~~~~~~~~~~~
// Rows are numbered since the run began, in the order in which they were reserved. `committed` is the number of rows
// that are complete without a gap. Batch k (`batches` = k have been drawn) sees rows [low, high):
// - with samples_per_insert, high = n(k) = min_size + floor(k * batch_size / samples_per_insert). next() waits until
//   committed >= n(k), and ignores later rows. So batch k is a function of the rows, the seed and k.
// - without, high = committed at this moment.
// low = high - capacity, but not before `first`, the oldest row that a resumed run has.
//
// The memory has capacity + ahead slots; row r overwrites row r - slots. A reservation that ends at row e therefore
// waits until e - slots <= low of the next batch, and <= committed: no row is overwritten before it is complete.
// Without samples_per_insert low counts only while a batch is being gathered; a batch that begins leaves out rows that
// reservations overwrite.

/// Counters of a ReplayBuffer, guarded by its mutex.
struct RingCounters {
  int64_t reserved = 0;
  int64_t committed = 0;
  int64_t batches = 0;
  int64_t first = 0;
  int64_t gathering = -1;  // low of the batch that is being gathered; -1: none
};

struct RowRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

/// The rules of a ReplayBuffer with `slots` rows of memory, see Note [Rows of a draw].
struct RingRule {
  ReplayBufferOptions options;
  int64_t slots = 0;

  bool is_exact() const { return options.samples_per_insert > 0; }
  /// Rows that batch `k` needs.
  int64_t needed(int64_t k) const {
    if (!is_exact()) return options.min_size;
    const double rows = static_cast<double>(k) * static_cast<double>(options.batch_size) / options.samples_per_insert;
    return options.min_size + static_cast<int64_t>(std::floor(rows));
  }
  /// Rows of the next batch; empty if it must wait.
  RowRange window(const RingCounters& now) const {
    const int64_t high = is_exact() ? needed(now.batches) : now.committed;
    if (now.committed < needed(now.batches)) return {};
    const int64_t low = std::max({high - options.capacity, now.first, now.reserved - slots});
    return low < high ? RowRange{low, high} : RowRange{};
  }
  /// The row after the last one that may be reserved.
  int64_t limit(const RingCounters& now) const {
    const int64_t free = now.committed + slots;
    if (!is_exact()) return now.gathering < 0 ? free : std::min(free, now.gathering + slots);
    return std::min(free, std::max<int64_t>(0, needed(now.batches) - options.capacity) + slots);
  }
  /// Rows that a checkpoint keeps: those of the next batch and later ones.
  RowRange kept(const RingCounters& now) const {
    const int64_t high = is_exact() ? std::min(now.committed, needed(now.batches)) : now.committed;
    const int64_t low = std::max({high - options.capacity, now.first, now.reserved - slots});
    return {std::min(low, now.committed), now.committed};
  }
};

}  // namespace trainkit::detail
