#pragma once
// Copies of a run's state for a thread that writes it. Internal to Trainer.

#include "core/host_tensors.h"
#include "trainkit/train/checkpoint.h"

namespace trainkit::detail {

/// snapshot() into memory of `buffer`, which the copy keeps for as long as it lives.
CheckpointContents snapshot_into(const CheckpointContents& contents, HostBuffer& buffer);

}  // namespace trainkit::detail
