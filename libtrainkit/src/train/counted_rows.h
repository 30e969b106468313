#pragma once
// Drops the padding rows of a batch.

#include "trainkit/data/batch.h"

namespace trainkit {

/// Returns the batch without the padding rows at its end. A batch that contains only padding is returned unchanged: the
/// caller gives it weight 0, but still learns the names of the metrics from it.
inline Batch counted_rows(const Batch& batch) {
  const int64_t own = batch.size() - batch.padding_rows();
  return own > 0 && own < batch.size() ? batch.slice(0, own) : batch;
}

}  // namespace trainkit
