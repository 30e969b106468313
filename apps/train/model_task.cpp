#include "train/model_task.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "trainkit/core/data_error.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/data/prefetcher.h"
#include "trainkit/data/sampler.h"
#include "trainkit/nn/functional.h"
#include "trainkit/tasks/classification.h"
#include "trainkit/tasks/regression.h"

namespace trainkit::train {
namespace {

constexpr char kOutput[] = "output:";

at::Tensor forward(ExportedModel& model, const Batch& batch) { return model->forward(inputs_of(*model, batch)); }

/// Cross-entropy over the last dimension: of rows, or of every position of a sequence.
at::Tensor entropy_of_positions(ExportedModel& model, const Batch& batch) {
  const at::Tensor logits = forward(model, batch);
  return cross_entropy(logits.reshape({-1, logits.size(-1)}), batch["y"].reshape({-1}));
}

at::Tensor numbers(ExportedModel& model, const Batch& batch) { return forward(model, batch).view_as(batch["y"]); }

LossFunction loss_alone(const std::string& loss) {
  if (loss == "cross_entropy") return LossFunction(entropy_of_positions);
  if (loss == "mse") {
    return [](ExportedModel& model, const Batch& batch) { return at::mse_loss(numbers(model, batch), batch["y"]); };
  }
  if (loss == "l1") {
    return [](ExportedModel& model, const Batch& batch) { return at::l1_loss(numbers(model, batch), batch["y"]); };
  }
  return [](ExportedModel& model, const Batch& batch) {
    return at::binary_cross_entropy_with_logits(numbers(model, batch), batch["y"].to(at::kFloat));
  };
}

/// The loss that the model computes itself.
LossFunction output_loss(const std::string& name) {
  return [name](ExportedModel& model, const Batch& batch) {
    for (auto& [output, tensor] : model->outputs(inputs_of(*model, batch))) {
      if (output == name) return tensor;
    }
    TORCH_CHECK_VALUE(false, "the model has no output ", name);
  };
}

/// The outputs of one row in evaluation mode.
absl::StatusOr<NamedTensors> outputs_of_first_row(const ExportedModel& model, std::shared_ptr<const Dataset> rows) {
  const int64_t count = rows->size();
  TRAINKIT_ASSIGN_OR_RETURN(const auto loader, Prefetcher::create(std::move(rows), SequentialSampler(count),
                                                                  {.batch_size = 1, .num_workers = 0}));
  TRAINKIT_ASSIGN_OR_RETURN(const std::optional<Batch> batch, loader->next());
  if (!batch) return data_error("data.empty", {}, "the data have no row");
  ExportedModel copy = model.copy();
  copy->eval();
  try {
    const c10::AutoGradMode no_grad(false);
    return copy->outputs(inputs_of(*copy, *batch));
  } catch (...) {
    return status_from_current_exception();
  }
}

Error usage(std::string field, std::string problem) {
  return {.exit_code = ExitCode::kUsage, .id = "cli.value", .field = std::move(field), .problem = std::move(problem)};
}

}  // namespace

std::vector<at::Tensor> inputs_of(const ExportedModelImpl& model, const Batch& batch) {
  std::vector<at::Tensor> inputs;
  const bool is_only = model.inputs().size() == 1;  // a folder per class calls it x
  for (const ExportedInput& input : model.inputs()) {
    inputs.push_back(is_only ? batch.tensors().front() : batch[input.name]);
  }
  return inputs;
}

absl::StatusOr<ModelTask> make_task(const std::string& loss, const ExportedModel& model, const ModelData& data) {
  TRAINKIT_ASSIGN_OR_RETURN(const NamedTensors outputs, outputs_of_first_row(model, data.rows));
  if (loss.starts_with(kOutput)) {
    const std::string name = loss.substr(sizeof(kOutput) - 1);
    std::vector<std::string> names;
    for (const auto& [output, tensor] : outputs) names.push_back(output);
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      Error error = usage("loss", "the model has no output " + name);
      error.expected = fmt::format("{}", fmt::join(names, ", "));
      return to_status(error);
    }
    return ModelTask{.loss = output_loss(name)};
  }
  if (outputs.empty()) return to_status(usage("model", "has no output that is a tensor"));
  const at::Tensor& first = outputs.front().second;
  const std::vector<FieldSpec>& fields = data.rows->fields();
  const auto y = std::find_if(fields.begin(), fields.end(), [](const FieldSpec& field) { return field.name == "y"; });
  const bool is_number = y == fields.end() || y->shape.empty();
  if (loss == "cross_entropy" && is_number && first.dim() == 2) {
    if (!data.classes.empty() && std::ssize(data.classes) != first.size(1)) {
      return data_error("data.arrays", {.field = data.target},
                        "the model has another number of outputs than the data classes",
                        std::to_string(data.classes.size()), std::to_string(first.size(1)));
    }
    return ModelTask{.task = classification(forward, {.labels = data.classes, .classes = first.size(1)})};
  }
  if (loss == "mse" && is_number && first.numel() == 1) {
    const auto output = [](ExportedModel& net, const Batch& batch) { return forward(net, batch).reshape({-1}); };
    return ModelTask{.task =
                         regression(output, {.target = data.target, .mean = data.mean, .deviation = data.deviation})};
  }
  return ModelTask{.loss = loss_alone(loss)};
}

}  // namespace trainkit::train
