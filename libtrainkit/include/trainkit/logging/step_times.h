#pragma once
/// Host-side times of training steps.

namespace trainkit {

/// Total seconds of all steps since the start. On a GPU these are host times; the host runs ahead of the device.
struct StepTimes {
  /// Copying rows from the host to the devices. Copies made ahead by the Prefetcher are in its own statistics.
  double copy_seconds = 0;
  /// Reducing gradients between devices and ranks, as far as it does not overlap with backward, and agreeing on the
  /// step.
  double reduce_seconds = 0;
  /// Clipping, optimizer and schedule: the part of the compute time that does not depend on the batch size.
  double update_seconds = 0;
};

}  // namespace trainkit
