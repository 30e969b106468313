#pragma once
/// Where the time of training steps went, as the host sees it.

namespace trainkit {

/// Seconds since the beginning, of all steps together. On a GPU they are those of the host, which runs ahead.
struct StepTimes {
  /// Bringing rows from the host to the devices; what the Prefetcher copies ahead is in its own statistics.
  double copy_seconds = 0;
  /// Reducing gradients between devices and ranks, not hidden behind backward, and agreeing on the step.
  double reduce_seconds = 0;
  /// Clipping, optimizer and schedule: what costs the same for any number of rows. A part of computing.
  double update_seconds = 0;
};

}  // namespace trainkit
