#pragma once
/// Copies the next batch to devices while the model trains on the current one.

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <optional>
#include <vector>

#include "data/loader/worker_pool.h"

namespace trainkit::detail {

// Note [Copy ahead]
//
// Prefetcher::next() returns batch n and starts the copy of batch n + 1, if that is ready, on a separate stream of each
// device. The host never waits for either:
//
// - begin() queues the copies on the copier's streams and records an event after them. Batch::to also registers each
//   copy with the slot (PendingCopies), so the slot is not refilled while a device reads it.
// - finish() makes the consumer's current stream of each device wait for the event. record_stream() tells the caching
//   allocator that this stream uses the memory, which was allocated on the copier's stream. Otherwise the allocator
//   could reuse it for the copy after next while the model still reads it.
// - discard() is the only call that blocks. It runs when the consumer moves to another position or ends.
//
// With one device, the batch is on it. With several, the batch stays on the host, because its owner may need other
// parts of it (a step that is retried in smaller parts), and holds one shard per device; see Batch::shard.

/// Owns the copy streams. At most one batch is in progress. Uses c10's device-neutral streams and events, so it needs
/// no CUDA header and compiles in every build.
class DeviceCopier {
 public:
  explicit DeviceCopier(const std::vector<at::Device>& devices);

  /// Starts the copy of the batch in `slot` on the copier's streams. The host does not wait.
  void begin(RingSlot* slot);
  /// Slot of the copy that was started and not finished; null if there is none. The slot is still lent.
  RingSlot* slot() const { return in_progress_ ? in_progress_->slot : nullptr; }
  /// Returns the batch on its devices. Later work on their current streams waits for the copy; the host does not.
  Batch finish();
  /// Waits for the copy in progress and drops it. Returns its slot, or null.
  RingSlot* discard();

 private:
  struct Part {
    Batch rows;
    c10::Event done;
  };
  struct Copy {
    RingSlot* slot;
    Batch host;
    std::vector<Part> parts;  // of each device
  };

  std::vector<c10::Stream> streams_;
  std::optional<Copy> in_progress_;
};

}  // namespace trainkit::detail
