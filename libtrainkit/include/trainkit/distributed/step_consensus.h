#pragma once
/// What ranks decide together after each step.

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trainkit/distributed/process_group.h"

namespace trainkit {

/// What one rank has to say about its step.
struct StepVote {
  /// A number of the caller's, 0 for none: the signal that asks this rank to stop. The largest is agreed on.
  int stop = 0;
  /// This rank asks for a checkpoint.
  bool save = false;
  /// Gradients that are not finite.
  bool found_inf = false;
  /// The step failed here for want of memory and can be taken again in smaller parts, or failed for good.
  bool out_of_memory = false;
  bool failed = false;
  /// What this rank's gradient and loss count (rows, tokens).
  double weight = 0;
  /// Why the step failed, for the others' messages.
  std::string reason = {};
};

/// What all ranks said, the same on each.
struct StepVerdict {
  int stop = 0;
  bool save = false;
  bool found_inf = false;
  /// Ranks whose step failed, those out of memory among them.
  std::vector<int64_t> out_of_memory = {};
  std::vector<int64_t> failed = {};
  /// Of the first rank that failed.
  std::string reason = {};
  double weight = 0;

  bool ok() const { return out_of_memory.empty() && failed.empty(); }
  /// Nobody failed for good: all take the step again.
  bool again = false;
};

/// One small all-reduce per step (3 + ranks doubles, on the host), so that ranks act alike: they stop after the same
/// step, skip the same step, and none leaves a step that the others go on with.
class StepConsensus {
 public:
  explicit StepConsensus(ProcessGroup& group);
  ~StepConsensus();

  /// Sends this rank's vote on `step` and returns at once, so that it travels while gradients do. Any error shows in
  /// wait().
  void send(int64_t step, const StepVote& vote);
  /// Whether a vote is on its way that nobody has waited for.
  bool sent() const { return sent_ != nullptr; }
  /// Blocks until every rank has voted on the step of send(). Besides the errors of ProcessGroup, dist.order (exit code
  /// 8) if a rank is at another step.
  absl::StatusOr<StepVerdict> wait();

  /// send(), then wait().
  absl::StatusOr<StepVerdict> operator()(int64_t step, const StepVote& vote) {
    send(step, vote);
    return wait();
  }

 private:
  struct Sent;

  absl::StatusOr<StepVerdict> read(int64_t step);

  ProcessGroup& group_;
  at::Tensor numbers_;
  std::unique_ptr<Sent> sent_;
};

}  // namespace trainkit
