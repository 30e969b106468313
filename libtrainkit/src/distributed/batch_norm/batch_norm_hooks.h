#pragma once
// What DeviceReplicator and TrainStep do with SyncBatchNorm layers.

#include <cstdint>
#include <memory>
#include <vector>

#include "core/libtorch/autograd_nodes.h"
#include "trainkit/distributed/sync_batch_norm.h"

namespace trainkit::detail {

struct RecordedNodes {
  std::vector<WeakNodePointer<torch::autograd::Node>> list;
};

struct BatchNormHooks {
  /// Sets the group of a replica's layer. `group` must outlive every forward in training.
  static void bind(SyncBatchNormImpl& layer, ReplicaGroup& group, int64_t replica) {
    layer.group_ = &group;
    layer.replica_ = replica;
  }
  /// Begins to record the autograd nodes that synchronise; `adds`: to those so far. Without `counts_rows`, their rows
  /// are left out of the statistics.
  static void begin_recording(SyncBatchNormImpl& layer, bool counts_rows, bool adds) {
    layer.counts_rows_ = counts_rows;
    if (!layer.nodes_) layer.nodes_ = std::make_shared<RecordedNodes>();
    if (!adds) layer.nodes_->list.clear();
  }
  /// The nodes since begin_recording() that wait for other replicas in backward: those of forwards with gradients, and
  /// of derivatives that are differentiated again.
  static const std::vector<WeakNodePointer<torch::autograd::Node>>& nodes(const SyncBatchNormImpl& layer) {
    static const RecordedNodes kNone;
    return (layer.nodes_ ? *layer.nodes_ : kNone).list;
  }
};

}  // namespace trainkit::detail
