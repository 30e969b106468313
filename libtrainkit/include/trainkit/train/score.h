#pragma once
/// Scores of a model over a data set that are no means over its batches, such as F1 or the coefficient of
/// determination. Common ones are in trainkit/train/metrics.h.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <c10/core/Device.h>

#include <memory>
#include <vector>

#include "trainkit/data/batch.h"
#include "trainkit/distributed/process_group.h"
#include "trainkit/train/evaluate.h"

namespace trainkit {

/// What the rows seen so far add up to, on one device. The sum of the parts that replicas and ranks have seen gives the
/// result of all rows.
///
///   class MeanError final : public Score {
///     std::unique_ptr<Score> empty_on(at::Device device) const override { return std::make_unique<MeanError>(device);
///     } void update(const at::Tensor& outputs, const Batch& rows) override { ... sum_ += (outputs -
///     rows["y"]).abs().sum(); } std::vector<at::Tensor> sums() const override { return {sum_, rows_}; } Metrics
///     result() const override { return {{"mae", sum_.item<double>() / rows_.item<double>()}}; }
///   };
class Score {
 public:
  virtual ~Score() = default;
  /// Returns a score of the same kind that has seen no rows, on `device`.
  virtual std::unique_ptr<Score> empty_on(at::Device device) const = 0;
  /// Adds rows: `outputs` of the model, (B, ...), and their batch, both on this score's device. One thread at a time.
  /// Must not synchronise.
  virtual void update(const at::Tensor& outputs, const Batch& rows) = 0;
  /// Returns what the rows add up to: tensors of int64 or float64, changed in place by merge().
  virtual std::vector<at::Tensor> sums() const = 0;
  /// Synchronises.
  virtual Metrics result() const = 0;

  /// Adds what another score of the same kind has seen, on any device: by default its sums().
  virtual void merge(const Score& other);
  /// Adds what the scores of all other ranks have seen, by default their sums(). A collective: all ranks call it and
  /// have the same result. Errors are those of ProcessGroup.
  virtual absl::Status merge_ranks(ProcessGroup& group);
};

}  // namespace trainkit
