#pragma once
/// Collectives between the replicas of a model, for use inside forward and backward.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trainkit {

/// Connects all replicas of one model, in this process and in others. Used by layers that need the rows of all replicas
/// (SyncBatchNorm) and for values that must be equal on all replicas.
class ReplicaGroup {
 public:
  virtual ~ReplicaGroup() = default;

  /// Number of replicas over all processes.
  virtual int64_t size() const = 0;

  /// Sums `tensor` over all replicas in place, in the order of the replicas; each gets the same bits. Every replica
  /// calls it from its own thread, in the same order, with tensors of one shape and dtype. Blocks the host for CPU
  /// tensors. Throws absl::BadStatusOrAccess if another replica has failed, instead of waiting for it.
  virtual void all_reduce(int64_t replica, at::Tensor& tensor) = 0;

  /// Whether `value` is true on any replica of this process; ranks do not ask each other. Every replica calls it, in
  /// the same order. Blocks the host until each has called. Throws as all_reduce.
  virtual bool any(int64_t replica, bool value) = 0;
};

}  // namespace trainkit
