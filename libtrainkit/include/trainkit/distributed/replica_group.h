#pragma once
/// What the replicas of a model say to one another inside forward and backward.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trainkit {

/// All replicas of one model, in this process and in others. For layers that need more than their own rows
/// (SyncBatchNorm) and for numbers that all replicas must have alike.
class ReplicaGroup {
 public:
  virtual ~ReplicaGroup() = default;

  /// Replicas over all processes.
  virtual int64_t size() const = 0;

  /// Sums `tensor` over all replicas, in place, in the order of the replicas; each gets the same bits. Called from the
  /// replica's own thread, by every replica, in the same order, with tensors of one shape and dtype. Blocks the host
  /// for CPU tensors. Throws (absl::BadStatusOrAccess) if another replica has failed, instead of waiting for it.
  virtual void all_reduce(int64_t replica, at::Tensor& tensor) = 0;
};

}  // namespace trainkit
