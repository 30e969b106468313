#pragma once
// Agreement of ranks whose hosts wait for one another in each step.

#include "core/base/time_sum.h"
#include "distributed/replicas/replica_strategy.h"
#include "train/agreement/agreement.h"

namespace trainkit::detail {

/// Agrees by StepConsensus: one small all-reduce of the hosts per step.
class HostAgreement : public Agreement {
 public:
  /// Precondition: `devices` has a process group.
  HostAgreement(ReplicaStrategy& devices, StepsInFlight& in_flight);

  bool can_retry() const override;
  /// All ranks split, or none does: micro-batches of a step share one scale, so ranks that split differently would
  /// weigh their rows differently.
  bool splits_retry(bool /*freed*/) override { return true; }
  void send(int64_t step, double weight) override { send(step, weight, ""); }
  bool fail(int64_t step, const Failure& failure) override;
  Outcome settle(int64_t step, double weight, double expected) override;
  By by() const override { return By::kHosts; }
  double seconds() const override { return time_.seconds(); }

 protected:
  ProcessGroup& group() const { return *devices_.process_group(); }
  /// Whether this rank's next step can be a CUDA graph.
  virtual StepVote::Graphs graphs_vote() const { return StepVote::Graphs::kNever; }

  ReplicaStrategy& devices_;

 private:
  void send(int64_t step, double weight, const std::string& reason);
  void receive() { verdict_ = consensus_.wait().value(); }
  void tell_others(int64_t step, const Failure& failure);

  StepConsensus consensus_;
  TimeSum time_;
};

}  // namespace trainkit::detail
