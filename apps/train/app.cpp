#include "train/app.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fnmatch.h>

#include <utility>

#include "trainkit/core/status.h"
#include "trainkit/data/adapters.h"
#include "trainkit/data/split.h"
#include "trainkit/optim/adagrad.h"
#include "trainkit/optim/adam.h"
#include "trainkit/optim/rmsprop.h"
#include "trainkit/optim/sgd.h"

namespace trainkit::train {

AppInfo TrainApp::info() const {
  return {.name = "trainkit-train",
          .description =
              "Trains a PyTorch model that Python has exported: trainkit.export_model(model, example, "
              "\"model.tkm\").\n--data_dir is a folder of .npy files or a .safetensors file with the names "
              "of the model's inputs and y, or a folder per class.",
          .examples = {"trainkit-train --model model.tkm --data_dir data --loss cross_entropy --max_steps 1000",
                       "trainkit-train --model resnet.tkm --data_dir classes --optimizer sgd --lr 0.01 --freeze "
                       "'layer1.*'",
                       "trainkit-train predict runs/train new_rows"},
          .help_flags = {"model", "loss", "optimizer", "validation_data", "freeze"}};
}

void TrainApp::set_defaults(RunOptions& run) const { run.output_dir = "runs/train"; }

void TrainApp::add_flags(ConfigParser& parser) {
  parser.add("model", &model_path_, {.help = "The exported model.", .group = "Model", .path = PathKind::kInput});
  parser.add("freeze", &freeze_,
             {.help = "Parameters that are not trained, by name: * stands for any characters.", .group = "Model"});
  parser.add("loss", &loss_,
             {.help = "cross_entropy, mse, l1, bce_with_logits, or output:NAME, an output of the model.",
              .group = "Optimization"});
  parser.add(
      "optimizer", &optimizer_,
      {.help = "Optimizer.", .group = "Optimization", .choices = {"adamw", "adam", "sgd", "rmsprop", "adagrad"}});
  parser.add("momentum", &momentum_, {.help = "Of sgd.", .group = "Optimization", .min = 0, .max = 1});
  parser.add("validation_data", &validation_path_,
             {.help = "Rows of the evaluation, as --data_dir. Not given: a share of --data_dir.",
              .group = "Data",
              .path = PathKind::kInput});
  parser.add("test_data", &test_path_,
             {.help = "Rows of the test after the training.", .group = "Data", .path = PathKind::kInput});
  parser.add(
      "validation_share", &validation_share_,
      {.help =
           "Without --validation_data: the share of --data_dir that is evaluated, and as many rows again are tested.",
       .group = "Data",
       .min = 0,
       .max = 0.4});
  parser.add("shuffle", &shuffle_, {.help = "Train the rows in a new order each epoch.", .group = "Data"});
}

absl::Status TrainApp::check_options(const ConfigParser& parser, const RunOptions& run) const {
  if (model_path_.empty()) return parser.invalid("model", "not given");
  if (run.data_dir.empty()) return parser.invalid("data_dir", "not given");
  const auto& names = loss_names();
  if (!loss_.starts_with("output:") && std::find(names.begin(), names.end(), loss_) == names.end()) {
    return parser.invalid("loss", "is no loss", fmt::format("{}, output:NAME", fmt::join(names, ", ")));
  }
  return absl::OkStatus();
}

absl::Status TrainApp::load_model() {
  TRAINKIT_ASSIGN_OR_RETURN(model_, ExportedModel::load(model_path_));
  for (auto& entry : model_->named_parameters()) {
    for (const std::string& pattern : freeze_) {
      if (fnmatch(pattern.c_str(), entry.key().c_str(), 0) == 0) entry.value().set_requires_grad(false);
    }
  }
  return absl::OkStatus();
}

std::function<std::shared_ptr<torch::nn::Module>()> TrainApp::copies() const {
  return [model = model_] { return model->clone(); };
}

std::function<std::unique_ptr<Optimizer>()> TrainApp::optimizers(const RunOptions& run) const {
  return
      [name = optimizer_, lr = run.lr, decay = run.weight_decay, momentum = momentum_]() -> std::unique_ptr<Optimizer> {
        if (name == "adam") return std::make_unique<Adam>(AdamOptions{.lr = lr});
        if (name == "sgd")
          return std::make_unique<SGD>(SGDOptions{.lr = lr, .momentum = momentum, .weight_decay = decay});
        if (name == "rmsprop") return std::make_unique<RMSprop>(RMSpropOptions{.lr = lr});
        if (name == "adagrad") return std::make_unique<Adagrad>(AdagradOptions{.lr = lr});
        return std::make_unique<AdamW>(AdamWOptions{.lr = lr, .weight_decay = decay});
      };
}

absl::StatusOr<TrainingTask> TrainApp::open(RunContext& context) {
  TRAINKIT_RETURN_IF_ERROR(load_model());
  const bool needs_y = !loss_.starts_with("output:");
  TRAINKIT_ASSIGN_OR_RETURN(const ModelData data, open_data(context.run.data_dir, model_->inputs(), needs_y));
  TRAINKIT_ASSIGN_OR_RETURN(ModelTask made, make_task(loss_, model_, data.rows, data.classes));
  const auto open_more = [&](const std::string& path) -> absl::StatusOr<std::shared_ptr<const Dataset>> {
    if (path.empty()) return nullptr;
    TRAINKIT_ASSIGN_OR_RETURN(const ModelData other, open_data(path, model_->inputs(), needs_y));
    return other.rows;
  };
  std::shared_ptr<const Dataset> training = data.rows;
  TRAINKIT_ASSIGN_OR_RETURN(std::shared_ptr<const Dataset> validation, open_more(validation_path_));
  TRAINKIT_ASSIGN_OR_RETURN(std::shared_ptr<const Dataset> test, open_more(test_path_));
  if (!validation && validation_share_ > 0) {
    const double test_share = test ? 0 : validation_share_;
    const auto parts = random_split(data.rows, {1 - validation_share_ - test_share, validation_share_, test_share});
    training = parts[0];
    validation = parts[1];
    if (!test) test = parts[2];
  }
  TrainingTask task{.recipe = {.make_model = copies(), .make_optimizer = optimizers(context.run)},
                    .training_set = training,
                    .validation_set = validation,
                    .task = made.task,
                    .test_set = made.task ? test : nullptr,
                    .keep_best = validation != nullptr};
  if (!shuffle_) task.order = std::make_shared<SequentialSampler>(training->size());
  task.recipe.loss = made.loss;
  task.description = {{"model", fmt::format("{}, {} parameters", model_path_, model_->parameters().size())}};
  return task;
}

std::vector<AppCommand> TrainApp::commands() {
  return {predict_command(
      *this, [this](TrainedRun& run) { return rows_to_predict(run); }, "DATA")};
}

absl::StatusOr<RowsToPredict> TrainApp::rows_to_predict(TrainedRun& run) {
  TRAINKIT_RETURN_IF_ERROR(load_model());
  TRAINKIT_ASSIGN_OR_RETURN(const ModelData trained, open_data(run.options.data_dir, model_->inputs(), false));
  TRAINKIT_ASSIGN_OR_RETURN(ModelData data, open_data(run.words.front(), model_->inputs(), /*needs_y=*/false));
  TRAINKIT_ASSIGN_OR_RETURN(ModelTask made, make_task(loss_, model_, data.rows, trained.classes));
  if (!made.task) {
    return to_status({.exit_code = ExitCode::kUsage,
                      .id = "cli.unused",
                      .field = "loss",
                      .problem = "predict is for classification and regression",
                      .got = loss_});
  }
  return RowsToPredict{copies(), made.task, data.rows};
}

}  // namespace trainkit::train
