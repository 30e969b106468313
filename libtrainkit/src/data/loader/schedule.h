#pragma once
/// Maps batch numbers to positions. Pure arithmetic, no threads.

#include <algorithm>
#include <cstdint>
#include <limits>

#include "data/loader/batch_reader.h"

namespace trainkit::detail {

/// The batches from one position of the data, numbered 0, 1, 2, ... through this epoch and all later ones.
struct Schedule {
  int64_t size;  // positions in an epoch
  int64_t batch_size;
  bool drop_last;
  int64_t epoch = 0;
  int64_t position = 0;  // position of batch 0 in rows; any multiple

  int64_t batches_from(int64_t begin) const {
    const int64_t left = std::max<int64_t>(0, size - begin);
    return drop_last ? left / batch_size : left / batch_size + (left % batch_size != 0);
  }
  int64_t batches_per_epoch() const { return batches_from(0); }
  int64_t batches_in_first_epoch() const { return batches_from(position); }
  /// Number of batches: unlimited, unless epochs are empty.
  int64_t end() const {
    return batches_per_epoch() > 0 ? std::numeric_limits<int64_t>::max() : batches_in_first_epoch();
  }

  BatchPlan plan(int64_t number) const {
    const int64_t first = batches_in_first_epoch();
    if (number < first) return at(epoch, position + number * batch_size);
    const int64_t later = number - first, per_epoch = batches_per_epoch();
    return at(epoch + 1 + later / per_epoch, later % per_epoch * batch_size);
  }

 private:
  BatchPlan at(int64_t in_epoch, int64_t begin) const { return {in_epoch, begin, std::min(batch_size, size - begin)}; }
};

}  // namespace trainkit::detail
