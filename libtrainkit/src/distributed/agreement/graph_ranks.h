#pragma once
// What a TrainStep needs of replicas and ranks whose steps are CUDA graphs.

#include <absl/status/status.h>

#include <chrono>
#include <string>
#include <string_view>

namespace trainkit::detail {

/// Interface of a DeviceReplicator whose steps can be CUDA graphs although it has several replicas.
class GraphReplicas {
 public:
  virtual ~GraphReplicas() = default;

  /// Returns why a step cannot be a graph; empty if it can.
  virtual std::string graph_obstacle() const = 0;
  /// Lets backward end on the devices' current streams, which are those of the steps from now on.
  virtual void use_current_streams() = 0;
  /// After a capture failed: waits for threads that may still work on it, and clears their errors.
  virtual void recover() {}
};

/// The same of several ranks.
class GraphRanks : public GraphReplicas {
 public:
  /// Between these two, run() is captured: it fails without consequences for other ranks.
  virtual void begin_capture() = 0;
  virtual void end_capture() = 0;
  /// After a capture failed on some rank, before its next run(): every rank arranges its buckets anew.
  virtual void rearrange() = 0;
  /// Reduces the gradients of the runs before, which were without reduction.
  virtual void reduce() = 0;

  /// Notices lost ranks although the host takes part in no collective. Every rank calls start_watch() at the same time.
  virtual void start_watch() = 0;
  /// Does not block. After a loss, returns the Error of `what`, which began at `started` (exit code 8).
  virtual absl::Status check(std::string_view what, std::chrono::steady_clock::time_point started) = 0;
};

}  // namespace trainkit::detail
