#pragma once
// The newest version of a model's weights on one device.

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <deque>
#include <memory>
#include <mutex>
#include <optional>

#include "rl/weight_copies.h"

namespace trainkit::detail {

/// A version in the order of the stream of the model's device, and when it is complete; no event on the CPU.
struct Snapshot {
  std::shared_ptr<const WeightBlocks> version;
  std::shared_ptr<c10::Event> done;
};

// Note [Weights on other devices]
//
// A snapshot is made on the model's device. Another device gets it by a copy on a stream that the channel owns, behind
// the event of the snapshot, so neither the host nor the model's stream waits. One copy is in progress; a newer
// snapshot waits in place of an older one that has not begun. Whoever calls next, publish() or latest(), looks at the
// event (cudaEventQuery does not block), takes the version if it is complete, and starts the copy that waits. A copy on
// the host holds its source until then; on a GPU the allocator of LibTorch knows the streams that still read memory.

/// Any thread. The lock is held while copies are queued, never while they run.
class WeightChannel {
 public:
  WeightChannel(at::Device device, at::Device model_device, std::shared_ptr<const WeightLayout> layout);

  at::Device device() const { return device_; }
  void offer(const Snapshot& snapshot);
  /// Null before the first version is complete.
  std::shared_ptr<const WeightBlocks> latest();
  /// Waits for the copies that are in progress and that wait.
  void wait();

 private:
  struct Copy {
    Snapshot source;
    std::shared_ptr<const WeightBlocks> version;
    std::shared_ptr<c10::Event> done;
  };
  void look();   // with the lock
  void start();  // with the lock

  const at::Device device_;
  const bool is_on_model_device_;
  const std::shared_ptr<const WeightLayout> layout_;
  std::shared_ptr<HostVersions> host_;  // of a channel to the CPU
  std::optional<c10::Stream> stream_;
  std::mutex mutex_;  // guards the members below
  std::shared_ptr<const WeightBlocks> latest_;
  std::deque<Copy> copies_;          // in progress, in order; on another device than the model's at most one
  std::optional<Snapshot> waiting_;  // to be copied next
};

}  // namespace trainkit::detail
