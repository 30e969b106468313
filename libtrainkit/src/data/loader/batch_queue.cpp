#include "data/loader/batch_queue.h"

#include <algorithm>
#include <bit>

namespace trainkit::detail {

BatchQueue::BatchQueue(const Schedule& of, int64_t end_number, int64_t max_in_progress)
    : schedule(of),
      end(std::min(end_number, of.end())),
      mask_(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(max_in_progress))) - 1),
      entries_(mask_ + 1) {}

RingSlot* BatchQueue::closed() {
  static RingSlot slot;
  return &slot;
}

bool BatchQueue::publish(int64_t number, RingSlot* slot) {
  RingSlot* empty = nullptr;
  return entry(number).slot.compare_exchange_strong(empty, slot, std::memory_order_seq_cst);
}

bool BatchQueue::ready(int64_t number) const { return entry(number).slot.load(std::memory_order_seq_cst) != nullptr; }

RingSlot* BatchQueue::peek(int64_t number) const { return entry(number).slot.load(std::memory_order_acquire); }

RingSlot* BatchQueue::take(int64_t number) { return entry(number).slot.exchange(nullptr, std::memory_order_acq_rel); }

std::vector<RingSlot*> BatchQueue::cancel() {
  cancelled.store(true, std::memory_order_seq_cst);
  first.close();  // the leader may have seen `cancelled` and not started
  std::vector<RingSlot*> published;
  for (Entry& each : entries_) {
    RingSlot* slot = each.slot.exchange(closed(), std::memory_order_acq_rel);
    if (slot && slot != closed()) published.push_back(slot);
  }
  return published;
}

}  // namespace trainkit::detail
