#pragma once
/// Computes the loss and metrics of a model over a data set, or runs the model over all its batches.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <functional>
#include <map>
#include <string>

#include "trainkit/data/prefetcher.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/train/loss.h"
#include "trainkit/train/train_step.h"

namespace trainkit {

/// Metrics by name, always including "loss".
using Metrics = std::map<std::string, double>;

/// Computes the means of the loss and its metrics over one epoch of `loader`, over all replicas and ranks, weighted by
/// LossOutput::weight. Runs in evaluation mode without gradients and restores the previous mode. Starts at epoch 0, so
/// every evaluation sees the same rows in the same order. Sums are float64 on the device and are read once, at the end.
///
/// Every rank must call it, with its own share of the rows (a DistributedSampler with Tail::kPad or kUneven). Padding
/// rows do not count, and every rank returns the same means.
///
/// Blocks the caller. Draws from no random generator unless the loss function does. Errors: those of the loader;
/// kInvalidArgument if the loader has no rows; those of other ranks (exit code 8).
absl::StatusOr<Metrics> evaluate(DeviceReplicator& devices, Prefetcher& loader, const LossFunction& loss,
                                 Precision precision = Precision::kFp32);

/// Calls `visit` for the rows of one epoch of `loader`, starting at epoch 0. Runs in evaluation mode, without
/// gradients, in `precision`, and restores the previous mode.
///
/// With several replicas each gets its share of a batch's rows on its device, and `visit` is called from one thread per
/// replica; it must write to state of that replica only. Padding rows (Batch::padding_rows) are included. Exceptions of
/// `visit` propagate; other errors are the loader's. Does not communicate with other ranks.
absl::Status for_each_batch(
    DeviceReplicator& devices, Prefetcher& loader, Precision precision,
    const std::function<void(int64_t replica, torch::nn::Module& model, const Batch& rows)>& visit);

}  // namespace trainkit
