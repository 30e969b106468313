#pragma once
/// The row that a thread is reading, so that a timeout can name it.

#include <atomic>
#include <cstdint>

#include "trainkit/data/dataset.h"

namespace trainkit::detail {

/// Publishes the current row of a worker; null on other threads.
extern thread_local std::atomic<int64_t>* reading_row;

inline void note_reading(const RowKey& key) {
  if (reading_row) reading_row->store(key.origin, std::memory_order_relaxed);
}

inline void note_reading_nothing() {
  if (reading_row) reading_row->store(-1, std::memory_order_relaxed);
}

}  // namespace trainkit::detail
