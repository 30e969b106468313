#pragma once
/// Agreement of the ranks after each step.

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trainkit/distributed/process_group.h"

namespace trainkit {

/// Reports the outcome of one rank's step.
struct StepVote {
  /// Stop request of the caller, 0 for none: the signal that asks this rank to stop. The ranks agree on the largest.
  int stop = 0;
  /// Checkpoint request of this rank.
  bool save = false;
  /// The step ran out of memory here and can be retried in smaller parts, or failed permanently.
  bool out_of_memory = false;
  bool failed = false;
  /// Rows or tokens that this rank's gradient and loss represent.
  double weight = 0;
  /// Whether this rank's steps can be CUDA graphs: never, not the next one, or from the next one on.
  enum class Graphs { kNever, kNotNow, kReady };
  Graphs graphs = Graphs::kNever;
  /// Cause of the failure, for the messages of the other ranks.
  std::string reason = {};
};

/// Combines the votes of all ranks; equal on each rank.
struct StepVerdict {
  int stop = 0;
  bool save = false;
  /// Ranks that ran out of memory, and all ranks whose step failed (including those).
  std::vector<int64_t> out_of_memory = {};
  std::vector<int64_t> failed = {};
  /// Reason of the first rank that failed.
  std::string reason = {};
  double weight = 0;
  /// Every rank's next step can be a CUDA graph. First rank whose steps never can.
  bool graphs_ready = false;
  std::optional<int64_t> without_graphs = std::nullopt;

  bool ok() const { return out_of_memory.empty() && failed.empty(); }
  /// No rank failed permanently: all ranks retry the step.
  bool retry = false;
};

namespace detail {

/// Numbers that are summed over the ranks to combine their votes. See Note [Step consensus].
class Ballot {
 public:
  static constexpr int64_t kWeight = 0;  // position of the weight, and of the number of ranks whose step succeeded
  static constexpr int64_t kSucceeded = 1;

  static int64_t size(int64_t ranks);
  /// Writes the vote of this rank into size() `numbers`. The reason of a failure goes to the store.
  static void write(double* numbers, ProcessGroup& group, int64_t step, const StepVote& vote);
  /// Reads the sums. Returns dist.order (exit code 8) if a rank is at a different step, or the errors of ProcessGroup.
  static absl::StatusOr<StepVerdict> read(const double* numbers, ProcessGroup& group, int64_t step);
};

}  // namespace detail

/// Agrees on the outcome of each step with one small all-reduce (4 + ranks doubles, on the host). All ranks then stop
/// after the same step, and no rank leaves a step that the others continue. See
/// Note [Step consensus].
class StepConsensus {
 public:
  explicit StepConsensus(ProcessGroup& group);
  ~StepConsensus();

  /// Sends this rank's vote on `step` and returns at once, so that it overlaps the reduction of gradients. wait()
  /// returns any error.
  void send(int64_t step, const StepVote& vote);
  /// Returns whether a vote was sent whose result has not been read by wait().
  bool sent() const { return sent_ != nullptr; }
  /// Blocks until every rank has voted on the step of send(). Returns the errors of ProcessGroup, or dist.order (exit
  /// code 8) if a rank is at a different step.
  absl::StatusOr<StepVerdict> wait();

  /// Calls send(), then wait().
  absl::StatusOr<StepVerdict> operator()(int64_t step, const StepVote& vote) {
    send(step, vote);
    return wait();
  }

 private:
  struct Sent;

  ProcessGroup& group_;
  at::Tensor numbers_;
  std::unique_ptr<Sent> sent_;
};

}  // namespace trainkit
