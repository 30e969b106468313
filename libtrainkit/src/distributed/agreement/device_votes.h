#pragma once
// Agreement of ranks on a step without a message of their hosts: votes are summed on the devices.

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>
#include <c10/core/Device.h>

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "distributed/agreement/step_consensus.h"

namespace trainkit::detail {

// Note [Votes on the devices]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~
// A rank whose step is a CUDA graph must not wait for the other hosts in each step. Its vote (a Ballot) is therefore
// copied to the device before the step, summed over the ranks by the device after the gradients, and copied back after
// the step. The device decides what depends on the other ranks: the update is skipped if a rank has failed
// (`blocked`), and gradients are corrected if the ranks' rows have another weight than expected (`correction`). The
// host reads the sums two steps later, when it waits for the end of that step in any case.
// Every tensor keeps its memory, since graphs read and write it. Host memory has two places, which alternate.

class DeviceVotes {
 public:
  static constexpr size_t kPlaces = 2;

  /// Allocates all memory.
  DeviceVotes(ProcessGroup& group, at::Device device);

  /// Prepares NCCL for sums of this size, which it cannot do in a capture. Every rank calls it, before the first
  /// cast().
  void connect();

  /// Copies this rank's vote to the device; not part of a graph. The device must have finished the step that last used
  /// `place`.
  void cast(size_t place, int64_t step, const StepVote& vote);
  /// Sums the votes over the ranks; part of a graph. `expected_weight` is that of all ranks.
  void sum(double expected_weight);
  /// 1 if the update must be skipped, as a rank has failed or nothing counts, else 0. float32, a scalar; 0 before the
  /// first sum().
  const at::Tensor& blocked() const { return blocked_; }
  /// Multiplies `gradients` in place by expected weight / weight of all ranks; costs little if that is 1.
  void correct(const std::vector<at::Tensor>& gradients) const;
  /// Weight of all ranks: float64, a scalar.
  at::Tensor weight() const { return votes_[Ballot::kWeight]; }

  /// Copies the sums to the host; not part of a graph.
  void collect(size_t place);
  /// Step whose sums were collected in `place` and not read yet.
  std::optional<int64_t> pending(size_t place) const { return places_[place].collected; }
  /// Reads them. The device must have finished the step. Errors as Ballot::read.
  absl::StatusOr<StepVerdict> read(size_t place);

 private:
  struct Place {
    at::Tensor cast, sums;  // page-locked
    int64_t step = 0;
    std::optional<int64_t> collected;
  };

  void decide(double expected_weight) const;

  ProcessGroup& group_;
  at::Tensor votes_;                 // float64, on the device
  at::Tensor blocked_, correction_;  // float32, on the device
  std::array<Place, kPlaces> places_;
};

}  // namespace trainkit::detail
