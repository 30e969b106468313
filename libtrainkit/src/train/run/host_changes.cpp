#include "train/run/host_changes.h"

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "optim/optimizer_parts.h"
#include "train/update/players.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit {

absl::Status set_lr(FitContext& run, std::string_view player, std::optional<std::string_view> group, double lr) {
  for (size_t i = 0; i < run.players.size(); ++i) {
    if (run.players[i].name != player) continue;
    LRScheduler* const scheduler = run.players[i].scheduler;
    for (Optimizer* optimizer : run.step.optimizers(i)) {
      detail::OptimizerParts& parts = detail::OptimizerParts::of(*optimizer);
      if (group) {
        parts.set_group_lr(*group, lr, scheduler ? scheduler->base_lr() : parts.rates.lr());
      } else if (!scheduler) {
        parts.rates.set(lr);
      }
    }
    if (!group && scheduler) scheduler->set_base_lr(lr);
    return absl::OkStatus();
  }
  return to_status({.exit_code = ExitCode::kUsage,
                    .id = "train.players",
                    .field = std::string(player),
                    .problem = "is the name of no player"});
}

absl::Status set_trainable(FitContext& run, std::string_view pattern, bool trainable) {
  const std::vector<std::string> names = detail::matching_parameters(*run.devices.module(), pattern);
  if (names.empty() || run.devices.shards()) {
    return to_status({.exit_code = ExitCode::kUsage,
                      .id = "train.frozen",
                      .field = std::string(pattern),
                      .problem = names.empty() ? "matches no parameter" : "cannot be frozen or thawed with sharding"});
  }
  for (const std::string& name : names) run.progress.trainable[name] = trainable;
  apply_trainable(run);
  return absl::OkStatus();
}

void apply_trainable(FitContext& run) {
  auto parameters = run.devices.module()->named_parameters();
  for (const auto& [name, trainable] : run.progress.trainable) {
    if (at::Tensor* parameter = parameters.find(name)) parameter->set_requires_grad(trainable);
  }
}

}  // namespace trainkit
