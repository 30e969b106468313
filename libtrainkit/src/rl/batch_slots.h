#pragma once
// Memory of the batches that a buffer lends.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "data/loader/slot.h"

namespace trainkit::detail {

/// A few slots, used in turn. A slot that is still in use is left to its holder, as a Prefetcher does. One thread.
class BatchSlots {
 public:
  BatchSlots(const std::vector<FieldSpec>& fields, int64_t rows) : layout_(fields, rows, /*pin_memory=*/false) {}

  /// Returns a slot to fill, with memory. Its row_indices() are those of an earlier batch.
  Slot& next() {
    Slot& slot = slots_[used_++ % slots_.size()];
    if (!slot.released()) slot.abandon();
    slot.prepare(layout_, allocations_);
    return slot;
  }

 private:
  SlotLayout layout_;
  std::array<Slot, 2> slots_;
  size_t used_ = 0;
  std::atomic<int64_t> allocations_{0};
};

}  // namespace trainkit::detail
