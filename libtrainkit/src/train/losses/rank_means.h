#pragma once
// Averages the metrics of a step over the ranks.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/device/late_scalars.h"
#include "trainkit/distributed/process_group.h"
#include "trainkit/train/step_metrics.h"

namespace trainkit::detail {

/// Adds to `names` those of all ranks' metrics that it lacks, in the order of the ranks; `own` are this rank's. Every
/// rank calls it. `what` names the exchange in errors.
absl::Status add_names_of_ranks(ProcessGroup& group, const std::vector<std::string>& own,
                                std::vector<std::string>& names, std::string_view what);

/// The ranks exchange names that not all of them know: at once if the host knows that there are any, that is on the CPU
/// and in the first call, else in the next call.
class RankMeans {
 public:
  explicit RankMeans(ProcessGroup& group) : group_(group) {}

  /// Replaces loss and metrics by their means over the ranks that have them, by weight, and drops the weights of the
  /// metrics. Every rank calls it for the same steps. One all-reduce, and the names of the metrics where they differ.
  void average(StepMetrics& metrics);

 private:
  void share_names(const StepMetrics& metrics);
  std::pair<at::Tensor, at::Tensor> means(const StepMetrics& metrics);

  ProcessGroup& group_;
  std::vector<std::string> names_;                // of the metrics of all ranks, in the same order on each
  std::optional<LateScalars> ranks_with_others_;  // number of ranks with other metrics, in the last call
};

}  // namespace trainkit::detail
