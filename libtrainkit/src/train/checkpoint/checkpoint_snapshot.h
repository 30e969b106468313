#pragma once
// Copies a run's state to host memory for the thread that writes it. Internal to Trainer.

#include "core/device/host_tensors.h"
#include "trainkit/train/checkpoint.h"

namespace trainkit::detail {

/// Does what snapshot() does, using the memory of `buffer`; the copy keeps that memory alive. Adds the copies of the
/// optimizer's state on the CPU to `pending` and leaves them to the caller, unless it is null.
CheckpointContents snapshot_into(const CheckpointContents& contents, HostBuffer& buffer, LaterCopies* pending);

}  // namespace trainkit::detail
