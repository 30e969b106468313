#pragma once
// Sums the gradients of replicas on several GPUs of one process while backward runs.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>
#include <vector>

#include "distributed/replicas/replica_streams.h"
#include "distributed/shards/gradient_hook.h"

namespace trainkit::detail {

// Note [Buckets of DataParallel]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// The gradients of a bucket are summed by NCCL on separate streams as soon as every replica has all of them, while
// backward computes the gradients of earlier layers. Each replica's backward runs in autograd's thread of its device. A
// hook on each parameter counts the bucket's gradients. A replica that has all of them records an event on its stream;
// the last replica makes the NCCL streams wait for the events of all replicas and starts the sum. No thread waits for
// another one.
//
// The first backward only records the order in which gradients appear; all are summed at its end. Buckets follow that
// order, as those of c10d's Reducer. Parameters that received no gradient, or several (under reentrant autograd), are
// summed at the end of every backward. So is a bucket that a backward did not fill, with zeros for missing gradients.
//
// Buckets hold the gradients themselves and are not copied into one buffer: one NCCL group has a message per parameter.
// Each sum has one order of replicas, so its bits do not depend on the time at which it starts.

/// Owned and called by DataParallel's thread; hooks call it from autograd's threads.
class BucketReducer {
 public:
  /// @param parameters [replica][parameter], the same parameters for each replica, on its device.
  BucketReducer(std::vector<std::vector<at::Tensor>> parameters, int64_t first_bucket_bytes, int64_t bucket_bytes);
  BucketReducer(const BucketReducer&) = delete;
  BucketReducer& operator=(const BucketReducer&) = delete;

  /// Sums gradients in the backward passes that follow.
  void begin();
  /// Sums the gradients that backward has not summed. The devices' current streams wait for all sums; the host waits
  /// for nothing.
  void finish();
  /// Ends a step that failed. The gradients are then undefined. The devices' current streams wait for the sums that
  /// were started, so the memory of the gradients may be released.
  void abandon();

 private:
  struct Bucket {
    std::vector<size_t> parameters;
    ReplicaEvents ready;
    std::vector<size_t> missing;  // gradients that a replica has not computed
    size_t replicas_missing = 0;
    bool is_sent = false;
  };

  void note_gradient(size_t replica, size_t parameter);
  void make_buckets();
  void send(const std::vector<size_t>& parameters);
  void send_rest();

  std::vector<std::vector<at::Tensor>> parameters_;
  int64_t first_bucket_bytes_, bucket_bytes_;
  std::vector<std::vector<int64_t>> strides_;  // of the gradients, by parameter
  ReplicaStreams streams_;
  std::vector<GradientHook> hooks_;

  std::mutex mutex_;  // guards what follows
  bool is_active_ = false;
  bool is_learning_ = true;    // see Note [Buckets of DataParallel]
  std::vector<size_t> order_;  // in which replica 0 computed gradients, while learning
  std::vector<Bucket> buckets_;
  std::vector<size_t> rest_;                    // parameters without a bucket
  std::vector<Bucket*> bucket_of_;              // by parameter; null for the rest
  std::vector<std::vector<char>> is_computed_;  // [replica][parameter], in this backward
};

}  // namespace trainkit::detail
