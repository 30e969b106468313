#pragma once
// What DeviceReplicator and TrainStep do with SyncBatchNorm layers.

#include <cstdint>
#include <memory>
#include <vector>

#include "trainkit/distributed/sync_batch_norm.h"

namespace trainkit::detail {

struct BatchNormHooks {
  /// Sets the group of a replica's layer. `group` must outlive every forward in training.
  static void bind(SyncBatchNormImpl& layer, ReplicaGroup& group, int64_t replica) {
    layer.group_ = &group;
    layer.replica_ = replica;
  }
  /// Begins to record the autograd nodes that synchronise. Without `counts_rows`, their rows are left out of the
  /// statistics.
  static void begin_recording(SyncBatchNormImpl& layer, bool counts_rows) {
    layer.counts_rows_ = counts_rows;
    layer.records_ = true;
    layer.nodes_.clear();
  }
  /// The nodes since begin_recording() that wait for other replicas in backward: those of forwards with gradients, and
  /// of derivatives that are differentiated again.
  static const std::vector<std::weak_ptr<torch::autograd::Node>>& nodes(const SyncBatchNormImpl& layer) {
    return layer.nodes_;
  }
};

}  // namespace trainkit::detail
