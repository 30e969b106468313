#pragma once
// What a TrainStep needs of ranks whose steps are CUDA graphs.

#include <absl/status/status.h>

#include <chrono>
#include <string_view>

#include "trainkit/distributed/process_group.h"

namespace trainkit::detail {

class RankReduction;

class GraphRanks {
 public:
  /// The arguments outlive this object.
  GraphRanks(ProcessGroup& group, RankReduction& reduction) : group_(group), reduction_(reduction) {}

  /// Between these two, a run is captured: it fails without consequences for other ranks.
  void begin_capture();
  void end_capture();
  /// After a capture failed on some rank, before its next run: every rank arranges its buckets anew.
  void rearrange();
  /// Reduces the gradients of the runs before, which were without reduction.
  void reduce();

  /// Notices lost ranks although the host takes part in no collective. Every rank calls start_watch() at the same time.
  void start_watch();
  /// Does not block. After a loss, returns the Error of `what`, which began at `started` (exit code 8).
  absl::Status check(std::string_view what, std::chrono::steady_clock::time_point started);

 private:
  ProcessGroup& group_;
  RankReduction& reduction_;
};

}  // namespace trainkit::detail
