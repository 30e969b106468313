#pragma once
// Collectives of replicas on several GPUs of one process, called from their threads.

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "distributed/replicas/replica_streams.h"
#include "distributed/shards/parameter_shards.h"
#include "trainkit/distributed/device_replicator.h"

namespace trainkit::detail {

// Note [Collectives of replica threads]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// Each replica has its own ParameterShards, which starts a reduce-scatter from autograd's thread of its device, bucket
// after bucket, in the same order as the other replicas, and the all-gathers during the update. SyncBatchNorm layers
// all-reduce in forward and backward. The n-th call of every replica is one round. A replica stores its buffer and
// records an event on its stream. The last one to arrive makes the NCCL streams wait for the events of all, and
// launches the collective of all devices as one NCCL group. No thread waits for another one to launch.
//
// wait() makes the replica's stream wait for the round's end on its device. That event exists after the launch, so the
// host waits for the slowest replica first. This cannot deadlock: the slowest replica waits only for rounds that all
// have reached.
//
// abort() releases the waiting threads when a replica has thrown, as in Note [Replica barrier]. Rounds that were
// launched are still running then: abandon() makes the devices wait for them, so that their memory can be reused.

/// Owned by DataParallel and called by its thread, except for the functions of a replica.
class ReplicaCollectives {
 public:
  explicit ReplicaCollectives(const std::vector<at::Device>& devices);
  ReplicaCollectives(const ReplicaCollectives&) = delete;
  ReplicaCollectives& operator=(const ReplicaCollectives&) = delete;

  /// Sums a contiguous tensor on the replica's device over all replicas, in place. Blocks until every replica has
  /// called it, but not until the devices are done.
  void all_reduce(int64_t replica, const at::Tensor& tensor);
  /// The collectives of a replica for its ParameterShards.
  ShardCollectives of(int64_t replica);

  /// Precedes a run of all replicas.
  void begin();
  /// Makes current and later calls of the replicas throw until begin(). Any thread may call it.
  void abort();
  /// Ends a run that failed.
  void abandon();

  /// Sums values[replica] over the replicas in place.
  void all_reduce(const std::vector<at::Tensor>& values);

 private:
  struct Round {
    std::vector<at::Tensor> buffers;  // of the replicas, until the launch
    ReplicaEvents ready, ends;
    size_t arrived = 0;
    bool is_launched = false;
  };

  using Collective = void (ReplicaStreams::*)(const std::vector<at::Tensor>&) const;
  ShardCollectives::Work start(size_t replica, const at::Tensor& buffer, Collective collective);
  void wait(size_t replica, size_t round);
  void throw_if_aborted() const;

  size_t replicas_;
  ReplicaStreams streams_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<Round> rounds_;  // reused from run to run
  std::vector<size_t> next_;  // round of each replica's next call
  bool is_aborted_ = false;
};

}  // namespace trainkit::detail
