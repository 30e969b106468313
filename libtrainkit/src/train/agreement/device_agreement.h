#pragma once
// Agreement of ranks on their devices, so that each rank's step can be a CUDA graph.

#include <absl/status/status.h>

#include <cstdint>
#include <string>
#include <vector>

#include "distributed/agreement/device_votes.h"
#include "distributed/replicas/graph_ranks.h"
#include "distributed/replicas/replica_strategy.h"
#include "train/agreement/host_agreement.h"

namespace trainkit::detail {

// Note [Graphs of several ranks]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// At first the hosts agree on each step, and every rank warms up and traces its kinds of steps. Their votes say whether
// all kinds of a rank are steady. When all ranks say so in one step, by() becomes kDevices on all of them, and
// steps are captured and replayed. It becomes kHosts again on all ranks two steps after one of them votes otherwise: as
// a step must be compared with its graph, as weights have moved, or as this rank cannot continue with graphs.
//
// While the devices agree, every rank starts the same collectives in the same order: buffers, buckets of gradients,
// votes, then those of the update (norms, weights of shards). A graph has them inside. A rank whose batch has another
// shape runs the step eagerly, and while it computes nobody can tell it to retry, nor can it tell others. It therefore
// computes all gradients before its first collective (reduces_later): if memory runs out, it splits the step alone.
// With Sharding::kGradients and with SyncBatchNorm layers that synchronise, micro-batches contain collectives
// (meets_every_run_): there it fails instead.
//
// A rank that fails takes part in two steps with zeros (take_part_as_failed). The devices skip both updates, and by
// then every host has read the first vote. With SyncBatchNorm it cannot take part, and leaves. A rank that is lost
// stops the devices; the hosts notice it while they wait for the step before the last one (GraphRanks::check). What the
// devices have queued by then computes with what was received, so weights are not defined afterwards. Checkpoints are
// written after confirm(), and thus whole.
//
// NCCL may mix ranks that replay a collective with others that start it, unless it registers the buffers of graphs
// (NCCL_GRAPH_REGISTER), for which all ranks must capture.

/// Agrees as HostAgreement until all ranks are ready for graphs, then by DeviceVotes.
class DeviceAgreement final : public HostAgreement {
 public:
  /// @param replicas_meet ReplicaLosses::meet
  DeviceAgreement(ReplicaStrategy& devices, StepsInFlight& in_flight, MemoryRecovery& memory, StepGraphs& graphs,
                  GraphRanks& ranks, bool replicas_meet);

  void begin_step() override;
  bool can_retry() const override;
  bool splits_retry(bool freed) override;
  bool reduces_later() const override;
  void reduce() override { ranks_.reduce(); }
  void send(int64_t step, double weight) override;
  bool fail(int64_t step, const Failure& failure) override;
  Outcome settle(int64_t step, double weight, double expected) override;

  bool nothing_counts() const override;
  void correct(const std::vector<Optimizer*>& optimizers, double expected, MemoryRecovery& memory) const override;

  void end_step(StepMetrics& metrics) override;
  void confirm() override;
  void leave_steps() override;

  By by() const override { return on_devices_ ? By::kDevices : By::kHosts; }
  OnDevices on_devices() const override { return {votes_.blocked(), votes_.weight()}; }
  void begin_capture() override;
  void end_capture() override;
  void vote_for_replay(int64_t step, double weight) override { cast(step, weight); }

 protected:
  StepVote::Graphs graphs_vote() const override;

 private:
  void cast(int64_t step, double weight);
  void await(size_t place) const;
  void read_votes(size_t place);
  void follow(const StepVerdict& verdict);
  void take_part_as_failed(int64_t step, const Failure& failure);

  MemoryRecovery& memory_;
  StepGraphs& graphs_;
  GraphRanks& ranks_;
  DeviceVotes votes_;
  bool replicas_meet_;
  bool reduces_every_run_;
  bool meets_every_run_;  // one or the other
  bool on_devices_ = false;
  bool is_capturing_ = false;
  bool some_hold_graphs_ = false;  // some rank may; equal on all ranks
  StepVerdict late_;               // combines the verdicts read since the last step ended
};

}  // namespace trainkit::detail
