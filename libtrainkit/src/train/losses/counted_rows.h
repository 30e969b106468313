#pragma once
// Drops the padding rows of a batch and weighs its loss.

#include <cmath>

#include "trainkit/data/batch.h"
#include "trainkit/train/loss.h"

namespace trainkit {

/// Returns the batch without the padding rows at its end. A batch that contains only padding is returned unchanged: the
/// caller gives it weight 0, but still learns the names of the metrics from it.
inline Batch counted_rows(const Batch& batch) {
  const int64_t own = batch.size() - batch.padding_rows();
  return own > 0 && own < batch.size() ? batch.slice(0, own) : batch;
}

/// Returns the weight of a batch's loss: 0 if there are only padding rows. Throws c10::ValueError for a negative weight
/// or one that is not finite.
inline double counted_weight(const Batch& batch, const LossOutput& output) {
  const int64_t own = batch.size() - batch.padding_rows();
  if (own == 0) return 0;
  const double weight = output.weight.value_or(static_cast<double>(own));
  TORCH_CHECK_VALUE(weight >= 0 && std::isfinite(weight), "LossOutput::weight must be finite and >= 0, got ", weight);
  return weight;
}

}  // namespace trainkit
