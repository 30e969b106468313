#pragma once
/// Results of a step.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace trainkit {

/// Scalars of one step, of the weights before its update: on the device, detached. Reading one waits for the device.
struct StepMetrics {
  /// Mean over the rows of this process, by weight; see TrainStep::average_over_ranks. A metric's mean is that of the
  /// micro-batches that returned it.
  at::Tensor loss;
  std::vector<std::pair<std::string, at::Tensor>> metrics;
  /// 2-norm of the gradients before clipping; undefined unless grad_clip > 0.
  at::Tensor grad_norm;
  /// Number of consecutive steps up to this one that were skipped because of non-finite gradients; 0 if this step was
  /// not. float32; undefined if no step can be skipped, or if nothing counts in this one.
  at::Tensor skipped_in_a_row;
  /// With skip_nonfinite on the CPU: origin of the first non-finite value, if this step has one. Known immediately.
  std::string first_nonfinite = {};
  /// Sum of the micro-batches' weights (LossOutput::weight) on this rank and on all ranks. On the host.
  double weight = 0;
  double world_weight = 0;
  std::vector<double> metric_weights = {};  ///< the same on this rank, of `metrics`; empty after average_over_ranks
  std::vector<int64_t> row_indices = {};    ///< of the first rows on this rank in the dataset, eight at most
  int64_t rows = 0;                         ///< number of rows on this rank
  /// Defined if several ranks run CUDA graphs: the weight on all ranks, float64. world_weight is then that of an
  /// earlier step.
  at::Tensor world_weight_on_device = {};
};

}  // namespace trainkit
