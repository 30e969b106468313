#pragma once
// Sums loss and metrics over the micro-batches and replicas of a step.

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "train/losses/rank_means.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/train/loss.h"
#include "trainkit/train/step_metrics.h"

namespace trainkit::detail {

class LossWeights;
class MemoryRecovery;
struct ReplicaResult;

/// Used by the thread of the step. Does not synchronise.
class MetricSums {
 public:
  MetricSums(const DeviceReplicator& devices, MemoryRecovery& memory);

  /// Adds the results of a micro-batch, each by its share. Nothing changes if memory runs out.
  /// @param state Parameters and buffers of a model whose steps may be captured: metrics that share their memory are
  /// copied. Null: all are copied that somebody else holds.
  void add(const std::vector<ReplicaResult>& results, const std::vector<at::Tensor>* state);
  /// Sets zero metrics for a step in which this rank could read no row, although other ranks could; does nothing if
  /// there are sums.
  void fill();
  /// Divides the sums by their weights, see Note [Weights of losses]. A metric of which nothing counted is dropped.
  void correct(const LossWeights& weights);

  /// The sums, and what the update of the step adds to them.
  StepMetrics& metrics() { return sums_; }
  /// Origin of the step's first loss that is not finite; empty if there is none.
  const std::string& nonfinite() const { return nonfinite_; }

  /// Ends a step: returns its metrics, without those of its rows and ranks.
  StepMetrics take(const LossWeights& weights);
  /// Drops a step that failed.
  void clear();
  /// See RankMeans; does nothing on a single rank.
  void average_over_ranks(StepMetrics& metrics);

 private:
  void add(const LossOutput& output, const ReplicaResult& result, const std::vector<at::Tensor>* state,
           StepMetrics& sums) const;

  const DeviceReplicator& devices_;
  MemoryRecovery& memory_;
  StepMetrics sums_;
  std::string nonfinite_;
  std::optional<std::vector<std::string>> names_;  // of the metrics, known after the first step with rows
  std::optional<RankMeans> means_;                 // null without ranks
};

}  // namespace trainkit::detail
