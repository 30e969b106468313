#pragma once
// The rows of a batch that count.

#include "trainkit/data/batch.h"

namespace trainkit {

/// The batch without the rows that only repeat others, at its end. One of nothing else stays as it is: a rank learns
/// nothing from it, but what its metrics are called.
inline Batch counted_rows(const Batch& batch) {
  const int64_t own = batch.size() - batch.padding_rows();
  return own > 0 && own < batch.size() ? batch.slice(0, own) : batch;
}

}  // namespace trainkit
