#pragma once
/// Losses of trainkit-train, and the kind of task that follows from one.

#include <absl/status/statusor.h>

#include <memory>
#include <string>
#include <vector>

#include "train/model_data.h"
#include "trainkit/nn/exported_model.h"
#include "trainkit/tasks/task.h"
#include "trainkit/train/loss.h"

namespace trainkit::train {

/// Names of --loss. "output:NAME" takes an output of the model.
inline const std::vector<std::string>& loss_names() {
  static const std::vector<std::string> names = {"cross_entropy", "mse", "l1", "bce_with_logits"};
  return names;
}

/// How a model is trained: with a loss alone, or with a task, which has scores and predictions too.
struct ModelTask {
  std::shared_ptr<Task> task = nullptr;
  LossFunction loss = nullptr;
};

/// Returns what --loss asks for. cross_entropy of a number per class is a classification, mse of one number a
/// regression; other shapes have the loss alone. Runs the model on the first row of `data`.
///
/// Errors: exit code 2 for an unknown output, 4 for outputs and targets that do not fit.
absl::StatusOr<ModelTask> make_task(const std::string& loss, const ExportedModel& model, const ModelData& data);

/// The inputs of the model, in its order.
std::vector<at::Tensor> inputs_of(const ExportedModelImpl& model, const Batch& batch);

}  // namespace trainkit::train
