#include "validation.h"

#include <ATen/ops/full.h>

#include <string>

#include "core/user_exception.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit {

absl::StatusOr<Metrics> Validation::evaluate(int64_t step) {
  step_.swap_averages();
  absl::StatusOr<Metrics> metrics = evaluate_here(step);
  step_.swap_averages();
  if (!metrics.ok()) metrics = annotate(metrics.status(), "evaluation after step " + std::to_string(step));
  ProcessGroup* group = devices_.process_group();
  if (!group || !group->usable()) return metrics;
  const at::Tensor failed = at::full({1}, metrics.ok() ? 0.0 : group->rank() + 1.0, at::kDouble);
  const absl::Status agreed = group->all_reduce_max(failed, "the end of the evaluation");
  if (!metrics.ok()) return metrics;
  TRAINKIT_RETURN_IF_ERROR(agreed);
  const auto rank = static_cast<int64_t>(failed.item<double>()) - 1;
  if (rank < 0) return metrics;
  return to_status({.exit_code = ExitCode::kDistributed,
                    .id = "dist.peer",
                    .problem = "rank " + std::to_string(rank) + " failed after the evaluation; see its error"});
}

/// Evaluates on this rank; means() exchanges the sums with the others.
absl::StatusOr<Metrics> Validation::evaluate_here(int64_t step) {
  const char* who = "the evaluation";
  try {
    TRAINKIT_ASSIGN_OR_RETURN(Metrics metrics, means());
    who = "on_evaluation";
    if (fit_.on_evaluation) fit_.on_evaluation(step, metrics);
    if (metrics.contains(options_.monitor)) return metrics;
  } catch (...) {
    return detail::status_from_user_exception("step " + std::to_string(step), who);
  }
  return to_status({.exit_code = ExitCode::kUsage,
                    .id = "train.monitor",
                    .field = "monitor",
                    .problem = "is not a metric of the evaluation",
                    .got = options_.monitor});
}

/// Returns the means over all ranks. If memory runs out and captured steps hold some, drops them and evaluates again.
absl::StatusOr<Metrics> Validation::means() {
  const auto lacks_memory = [this](const absl::Status& status) {
    return absl::IsResourceExhausted(status) && step_.drop_graphs("out of memory in an evaluation");
  };
  try {
    auto metrics = trainkit::evaluate(devices_, *fit_.validation, loss_, options_.precision);
    if (!lacks_memory(metrics.status())) return metrics;
  } catch (const std::exception&) {
    if (!lacks_memory(status_from_current_exception())) throw;
  }
  return trainkit::evaluate(devices_, *fit_.validation, loss_, options_.precision);
}

}  // namespace trainkit
