#include "train/run/validation.h"

#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <string>
#include <utility>

#include "core/base/user_exception.h"
#include "trainkit/core/error.h"
#include "trainkit/core/evaluation_mode.h"
#include "trainkit/core/format.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

constexpr double kSecondsPerLine = 10;

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

EvaluationProgress progress_lines(Logger& logger, int64_t step, std::function<double()> clock) {
  const double begin = clock();
  return [&logger, step, clock, begin, next = begin + kSecondsPerLine](int64_t done, int64_t total) mutable {
    const double now = clock();
    if (now < next) return;
    next = now + kSecondsPerLine;
    const double left = (now - begin) * static_cast<double>(total - done) / static_cast<double>(done);
    logger.print(fmt::format("evaluation after step {}: {}% ({}/{} batches), {} left", step, 100 * done / total, done,
                             total, format_duration(left)));
  };
}

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
  if (rank < 0) return agree(*std::move(metrics), *group);
  return to_status({.exit_code = ExitCode::kDistributed,
                    .id = "dist.peer",
                    .problem = "rank " + std::to_string(rank) + " failed after the evaluation; see its error"});
}

/// Replaces the monitored metric by the first rank's, since all ranks must decide alike, and warns once if a rank had
/// another.
absl::StatusOr<Metrics> Validation::agree(Metrics metrics, ProcessGroup& group) {
  double& value = metrics.at(options_.monitor);
  const at::Tensor first = at::full({1}, value, at::kDouble);
  TRAINKIT_RETURN_IF_ERROR(group.broadcast({first}, 0, "the monitored metric"));
  const auto agreed = first.item<double>();
  const bool differs = agreed != value && !(std::isnan(agreed) && std::isnan(value));
  const at::Tensor other = at::full({1}, differs ? static_cast<double>(group.rank()) : 0.0, at::kDouble);
  TRAINKIT_RETURN_IF_ERROR(group.all_reduce_max(other, "the monitored metric"));
  value = agreed;
  const auto rank = static_cast<int64_t>(other.item<double>());
  if (rank > 0 && !std::exchange(warned_of_metric_, true) && fit_.logger) {
    fit_.logger->print(fmt::format(
        "warning: metric {} differs between ranks 0 and {}: best step, early stopping and plateau follow rank 0's "
        "{:g}. Compute it over all ranks in on_evaluation",
        options_.monitor, rank, agreed));
  }
  return metrics;
}

/// Evaluates on this rank; means() exchanges the sums with the others.
absl::StatusOr<Metrics> Validation::evaluate_here(int64_t step) {
  const char* who = "the evaluation";
  try {
    TRAINKIT_ASSIGN_OR_RETURN(Metrics metrics, means(step));
    who = "on_evaluation";
    if (fit_.on_evaluation) call_back(step, metrics);
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

/// Calls on_evaluation. The modes of the model stay as they were: a callback that samples in evaluation mode may forget
/// to restore them, or restore others by train().
void Validation::call_back(int64_t step, Metrics& metrics) {
  const detail::KeptModes modes(*devices_.module());
  fit_.on_evaluation(step, metrics);
  if (!modes.have_changed() || !fit_.logger || std::exchange(warned_of_modes_, true)) return;
  fit_.logger->print(
      "warning: on_evaluation left modules in another mode (train() or eval()); training continues in the modes from "
      "before the evaluation. Change modes between two calls of fit(), or in the loss function");
}

/// Returns the means over all ranks, of all sets.
absl::StatusOr<Metrics> Validation::means(int64_t step) {
  TRAINKIT_ASSIGN_OR_RETURN(Metrics all, means_of(*fit_.validation, loss_, step));
  for (const ValidationSet& set : fit_.validation_sets) {
    TRAINKIT_ASSIGN_OR_RETURN(const Metrics metrics, means_of(*set.loader, set.loss ? set.loss : loss_, step));
    for (const auto& [name, value] : metrics) all[set.name + "." + name] = value;
  }
  return all;
}

/// If memory runs out and captured steps hold some, drops them and evaluates again.
absl::StatusOr<Metrics> Validation::means_of(Prefetcher& loader, const LossFunction& loss, int64_t step) {
  const auto lacks_memory = [this](const absl::Status& status) {
    return absl::IsResourceExhausted(status) && step_.drop_graphs("out of memory in an evaluation");
  };
  const auto evaluate_once = [&] {
    return trainkit::evaluate(devices_, loader, loss, options_.precision,
                              fit_.logger ? progress_lines(*fit_.logger, step, steady_seconds) : EvaluationProgress());
  };
  try {
    auto metrics = evaluate_once();
    if (!lacks_memory(metrics.status())) return metrics;
  } catch (const std::exception&) {
    if (!lacks_memory(status_from_current_exception())) throw;
  }
  return evaluate_once();
}

}  // namespace trainkit
