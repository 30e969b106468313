#pragma once
// Runs NCCL's collectives among the GPUs of one process, on streams of their own.

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <functional>
#include <vector>

namespace trainkit::detail {

using ReplicaEvents = std::vector<c10::Event>;  // one per replica

/// One NCCL stream per device. Nothing here blocks the host.
class ReplicaStreams {
 public:
  /// Creates the streams, and NCCL's communicators for these devices.
  explicit ReplicaStreams(const std::vector<at::Device>& devices);

  /// Throws c10::ValueError in a build without NCCL, which has no streams.
  void check_available() const;

  /// Returns events that have not been recorded.
  ReplicaEvents make_events() const;
  /// Records the work on the current stream of a replica's device.
  void record(size_t replica, ReplicaEvents& events) const;
  /// Makes the NCCL streams wait for these events.
  void wait_for(ReplicaEvents& events);
  /// Makes the NCCL streams wait for the work on the devices' current streams.
  void wait_for_devices();
  /// Makes the devices' current streams wait for the collectives that were launched.
  void join();
  /// Records the collectives that were launched. `block` makes the current stream of a replica's device wait for them.
  void record_launched(ReplicaEvents& events) const;
  void block(size_t replica, ReplicaEvents& events) const;

  // Each list has one tensor per replica, contiguous and on its device. Collectives between begin and end of launch()
  // are one NCCL launch.
  void launch(const std::function<void()>& collectives) const;
  void all_reduce(const std::vector<at::Tensor>& tensors) const;
  /// Replaces a replica's part of its tensor (1-D, one part of equal size per replica) by the sum over all replicas.
  /// The other parts are undefined afterwards.
  void reduce_scatter(const std::vector<at::Tensor>& tensors) const;
  /// Replaces the other replicas' parts of each tensor by theirs.
  void all_gather(const std::vector<at::Tensor>& tensors) const;

 private:
  std::vector<c10::Stream> streams_;
  ReplicaEvents ends_;  // for short use
};

}  // namespace trainkit::detail
