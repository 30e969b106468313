#include "train/losses/rank_means.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <absl/status/statusor.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

#include <algorithm>
#include <limits>
#include <tuple>

#include "trainkit/core/status.h"

namespace trainkit::detail {

absl::Status add_names_of_ranks(ProcessGroup& group, const std::vector<std::string>& own,
                                std::vector<std::string>& names, std::string_view what) {
  for (int64_t rank = 0; rank < group.world_size(); ++rank) {
    TRAINKIT_ASSIGN_OR_RETURN(const std::string text, group.broadcast_text(absl::StrJoin(own, "\n"), rank, what));
    for (const absl::string_view name : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      if (std::find(names.begin(), names.end(), name) == names.end()) names.emplace_back(name);
    }
  }
  return absl::OkStatus();
}

/// Adds the names of all ranks' metrics to names_, in the order of the ranks.
void RankMeans::share_names(const StepMetrics& metrics) {
  std::vector<std::string> own;
  for (const auto& [name, value] : metrics.metrics) own.push_back(name);
  const absl::Status shared = add_names_of_ranks(group_, own, names_, "names of the metrics");
  if (!shared.ok()) throw absl::BadStatusOrAccess(shared);
}

/// Returns the means over all ranks of the loss and of the metrics in names_, and their weights: float64, on the
/// device. The mean of a metric that no rank has is NaN. The all-reduce also counts the ranks with other metrics.
std::pair<at::Tensor, at::Tensor> RankMeans::means(const StepMetrics& metrics) {
  std::vector<at::Tensor> values{metrics.loss.to(at::kDouble).reshape({})};
  std::vector<double> weights{metrics.weight};
  size_t known = 0;
  for (const std::string& name : names_) {
    const auto named = std::find_if(metrics.metrics.begin(), metrics.metrics.end(),
                                    [&](const auto& metric) { return metric.first == name; });
    const bool has = named != metrics.metrics.end();
    known += has;
    values.push_back(has ? named->second.to(at::kDouble).reshape({}) : at::zeros_like(values.front()));
    weights.push_back(has ? metrics.metric_weights[static_cast<size_t>(named - metrics.metrics.begin())] : 0);
  }
  weights.push_back(known < metrics.metrics.size() ? 1 : 0);
  const auto count = std::ssize(values);
  // A copy from page-locked memory does not wait for the device.
  const auto host = at::TensorOptions(at::kDouble).pinned_memory(metrics.loss.is_cuda());
  const at::Tensor factors = at::tensor(weights, host).to(metrics.loss.device(), /*non_blocking=*/true);
  const at::Tensor sums = at::cat({at::stack(values).mul_(factors.narrow(0, 0, count)), factors});
  const absl::Status reduced = group_.all_reduce(sums, "all_reduce(metrics)");
  if (!reduced.ok()) throw absl::BadStatusOrAccess(reduced);
  ranks_with_others_ = LateScalars({sums[2 * count]});
  const at::Tensor totals = sums.narrow(0, count, count);
  totals.narrow(0, 0, 1).clamp_min_(std::numeric_limits<double>::min());  // a step in which nothing counts: loss 0
  return {sums.narrow(0, 0, count).div(totals), totals};
}

void RankMeans::average(StepMetrics& metrics) {
  if (group_.world_size() == 1) return;
  if (!metrics.world_weight_on_device.defined() && metrics.world_weight == 0) return;
  const bool waits = metrics.loss.is_cpu() || !ranks_with_others_;
  if (ranks_with_others_ && ranks_with_others_->values()[0] > 0) share_names(metrics);
  auto [averages, totals] = means(metrics);
  if (waits && ranks_with_others_->values()[0] > 0) {
    share_names(metrics);
    std::tie(averages, totals) = means(metrics);
  }
  metrics.loss = averages[0];
  metrics.metrics.clear();
  metrics.metric_weights.clear();
  for (size_t i = 0; i < names_.size(); ++i) {
    const auto at = static_cast<int64_t>(i) + 1;
    if (totals.is_cpu() && totals[at].item<double>() == 0) continue;
    metrics.metrics.emplace_back(names_[i], averages[at]);
  }
}

}  // namespace trainkit::detail
