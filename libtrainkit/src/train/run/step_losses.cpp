#include "train/run/step_losses.h"

#include <absl/status/statusor.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <string>
#include <utility>

#include "core/base/user_exception.h"

namespace trainkit {

LossFunction naming_step(LossFunction loss, const char* who, const RunProgress& progress) {
  if (!loss) return nullptr;
  return [&progress, who, loss = std::move(loss)](torch::nn::Module& model, const Batch& batch) {
    const bool trains = c10::GradMode::is_enabled();  // else in an evaluation
    try {
      return loss(model, batch);
    } catch (...) {
      const int64_t step = progress.step + (trains ? 1 : 0);
      throw absl::BadStatusOrAccess(detail::status_from_user_exception("step " + std::to_string(step), who));
    }
  };
}

Trained naming_step(Trained trained, const RunProgress& progress) {
  for (Player& player : trained.players) {
    player.loss = naming_step(std::move(player.loss), "the loss function of a player", progress);
  }
  return trained;
}

LossFunction with_gradients(LossFunction loss) {
  if (!loss) return nullptr;
  return [loss = std::move(loss)](torch::nn::Module& model, const Batch& batch) {
    const c10::AutoGradMode grad(true);
    LossOutput output = loss(model, batch);
    output.loss = output.loss.detach();
    for (auto& [name, metric] : output.metrics) metric = metric.detach();
    return output;
  };
}

}  // namespace trainkit
