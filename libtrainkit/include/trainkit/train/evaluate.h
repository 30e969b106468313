#pragma once
/// The loss and metrics of a model over a whole data set, or what else is to be had of it.

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

/// Metrics by name; "loss" is always among them.
using Metrics = std::map<std::string, double>;

/// Means of the loss and its metrics over one epoch of `loader`, on all replicas and ranks together, weighted by
/// LossOutput::weight, in evaluation mode and without gradients. Starts at epoch 0, so that every evaluation sees the
/// same rows in the same order; the model goes back to the mode it was in. Sums are kept in float64 on the device and
/// read once, at the end.
///
/// Each rank gives its own share of the rows (a DistributedSampler with Tail::kPad or kUneven); rows that only repeat
/// others do not count, and every rank returns the same. All ranks call it.
///
/// Blocks the caller; draws nothing from the random generators unless the loss function does. Errors are the loader's,
/// kInvalidArgument for a loader without rows, and those of other ranks (exit code 8).
absl::StatusOr<Metrics> evaluate(DeviceReplicator& devices, Prefetcher& loader, const LossFunction& loss,
                                 Precision precision = Precision::kFp32);

/// Calls `visit` for the rows of one epoch of `loader`, in evaluation mode, without gradients and in `precision`, from
/// epoch 0; the models go back to the mode they were in. With several replicas each gets its share of a batch's rows,
/// on its device, and `visit` is called from a thread for each: what it writes to must be the replica's own. Rows that
/// only repeat others (Batch::padding_rows) are among them. What `visit` throws is thrown on; other errors are the
/// loader's. Other ranks play no part.
absl::Status for_each_batch(
    DeviceReplicator& devices, Prefetcher& loader, Precision precision,
    const std::function<void(int64_t replica, torch::nn::Module& model, const Batch& rows)>& visit);

}  // namespace trainkit
