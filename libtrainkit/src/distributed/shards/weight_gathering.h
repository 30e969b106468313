#pragma once
// Sends the updated weights of a divided training state to all ranks.

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "distributed/shards/shard_collectives.h"

namespace trainkit::detail {

/// Called by the thread of its DeviceReplicator.
class WeightGathering {
 public:
  /// `collectives` outlive this object.
  explicit WeightGathering(const ShardCollectives& collectives) : collectives_(collectives) {}

  /// Adds the buffer of the next bucket: the weights, one part per rank.
  void add(at::Tensor weights) { buckets_.push_back({.weights = std::move(weights)}); }
  /// Forgets what was started by an update that failed.
  void begin();
  /// Starts to send the weights of a bucket, whose part has been updated, to all ranks, or those of all buckets that
  /// were not started. Every rank starts the buckets in one order.
  void start(size_t bucket);
  void start();
  /// Waits for what was started.
  void finish();
  /// Sends the updated weights to all ranks: what start() has not sent yet.
  void run();

 private:
  struct Bucket {
    at::Tensor weights;
    ShardCollectives::Work work = nullptr;
    bool is_started = false;
  };
  const ShardCollectives& collectives_;
  std::vector<Bucket> buckets_;
};

}  // namespace trainkit::detail
