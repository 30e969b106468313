#pragma once
/// The exchange of batches and slots between the readers and the consumer.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <vector>

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

// Note [Batch hand-over]
//
// Batches of a Schedule have consecutive numbers. Batch n travels like this, without a lock:
//
// 1. A reader waits until it has `group_` free slots, claims as many numbers with next.fetch_add, and reads each batch
//    into one of its own slots. A core thus writes memory that is already in its cache.
// 2. publish() stores the slot in entry n with a compare-exchange from null.
// 3. The consumer takes batches in order: ready(n) loads the entry, and take(n) exchanges it with null.
// 4. When the caller is done with the batch, give_back() sets the slot's bit in the owner's free_ again.
//
// Entries. The table has at least as many entries as there are slots. A claimed number always has a slot, so all
// numbers between the consumer and the last claim have different entries.
//
// Sleeping. A system call is needed only if the other side sleeps. Both directions follow the protocol of Futex: the
// consumer stores `awaited` and checks the entry again before it sleeps, and the reader publishes before it loads
// `awaited`; the reader stores `wanted_slots_` and checks free_ again, and the consumer sets the bit in free_ before it
// loads `wanted_slots_`. These accesses are sequentially consistent. Otherwise each side could miss the other's store,
// and both would sleep.
//
// Groups. If a batch takes only microseconds, a wake-up costs as much as the batch. The reader then claims several
// batches per claim (about 50 us of work, at most half of its slots) and wakes the consumer once per group.
//
// Cancel. The consumer marks the queue as cancelled and exchanges every entry with closed(). publish() then fails and
// the reader keeps its slot, so each slot is either returned by cancel() or still with its reader, never both.

inline constexpr size_t kCacheLine = 64;

class Reader;

/// A slot and its owner.
struct RingSlot {
  Slot slot;
  Reader* owner = nullptr;
  uint64_t bit = 0;  // in owner->free_
};

/// Maps the numbers of batches in progress to slots. See Note [Batch hand-over].
class BatchQueue {
 public:
  BatchQueue(const Schedule& schedule, int64_t end, int64_t max_in_progress);

  const Schedule schedule;
  const int64_t end;                                 // batches from this number on are not claimed
  std::atomic<bool> cancelled{false};                // the consumer has moved to another position
  alignas(kCacheLine) std::atomic<int64_t> next{0};  // the first unclaimed batch
  TeamRead first;                                    // reads batch 0

  /// Called by the reader. Hands the slot to the consumer. Returns false if the queue was cancelled; the reader keeps
  /// the slot.
  bool publish(int64_t number, RingSlot* slot);
  /// Called by the consumer.
  bool ready(int64_t number) const;
  RingSlot* peek(int64_t number) const;
  /// Maximum number of batches in progress.
  int64_t capacity() const { return mask_ + 1; }
  RingSlot* take(int64_t number);
  /// Called by the consumer. Prevents further publishing and returns the slots that were published and not taken.
  std::vector<RingSlot*> cancel();

 private:
  struct alignas(kCacheLine) Entry {
    std::atomic<RingSlot*> slot{nullptr};
  };
  static RingSlot* closed();
  Entry& entry(int64_t number) { return entries_[number & mask_]; }
  const Entry& entry(int64_t number) const { return entries_[number & mask_]; }

  int64_t mask_;
  std::vector<Entry> entries_;
};

}  // namespace trainkit::detail
