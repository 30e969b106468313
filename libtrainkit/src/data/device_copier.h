#pragma once
/// Copies the next batch to a device while the present one is trained on.

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <optional>

#include "data/worker_pool.h"

namespace trainkit::detail {

/// Owns a stream. One copy is under way at a time. Written on c10's device-neutral streams and events, so that it needs
/// no CUDA header and is compiled everywhere.
class DeviceCopier {
 public:
  explicit DeviceCopier(at::Device device);

  /// Begins to copy the batch of `slot` on the copier's stream; the host does not wait.
  void begin(RingSlot* slot);
  /// The slot that begin() was called with and finish() was not; null if there is none. It is still lent.
  RingSlot* slot() const { return under_way_ ? under_way_->slot : nullptr; }
  /// The batch on the device. Work queued on the current stream from now on waits for the copy; the host does not.
  Batch finish();
  /// Waits for the copy that is under way and forgets it. Its slot, or null.
  RingSlot* discard();

 private:
  struct Copy {
    RingSlot* slot;
    Batch batch;
    c10::Event done;
  };

  at::Device device_;
  c10::Stream stream_;
  std::optional<Copy> under_way_;
};

}  // namespace trainkit::detail
