#include "train/app.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fnmatch.h>

#include <filesystem>
#include <utility>

#include "trainkit/core/status.h"
#include "trainkit/data/adapters.h"
#include "trainkit/data/split.h"
#include "trainkit/io/safetensors.h"
#include "trainkit/optim/adagrad.h"
#include "trainkit/optim/adam.h"
#include "trainkit/optim/rmsprop.h"
#include "trainkit/optim/sgd.h"

namespace trainkit::train {
namespace {

constexpr char kColumns[] = "table.json";

}  // namespace

AppInfo TrainApp::info() const {
  return {.name = "trainkit-train",
          .description =
              "Trains a PyTorch model that Python has exported: trainkit.export_model(model, example, "
              "\"model.tkm\").\n--data_dir is a folder of .npy files or a .safetensors file with the names "
              "of the model's inputs and y, a folder per class, or a table with --target.",
          .examples = {"trainkit-train --model model.tkm --data_dir data --loss cross_entropy --max_steps 1000",
                       "trainkit-train --model resnet.tkm --data_dir classes --optimizer sgd --lr 0.01 --freeze "
                       "'layer1.*'",
                       "trainkit-train --model model.tkm --data_dir prices.csv --target price --loss mse",
                       "trainkit-train predict runs/train new_rows"},
          .help_flags = {"model", "target", "loss", "optimizer", "validation_data", "freeze"},
          .files = {kColumns}};
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
  parser.add("target", &target_,
             {.help = "--data_dir is a table, and this is the column to predict. The others are the model's inputs.",
              .group = "Data"});
  parser.add("ignore", &ignore_, {.help = "Columns of the table that are no inputs.", .group = "Data"});
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

absl::StatusOr<ModelData> TrainApp::open_rows(const std::string& path, bool needs_y) const {
  if (target_.empty()) return open_data(path, model_->inputs(), needs_y);
  TRAINKIT_ASSIGN_OR_RETURN(const Table table, Table::open(path));
  TRAINKIT_RETURN_IF_ERROR(needs_y ? table.column(target_).status() : absl::OkStatus());
  return rows_of_table(table, columns_, model_->inputs(), loss_);
}

absl::StatusOr<TrainingTask> TrainApp::open(RunContext& context) {
  TRAINKIT_RETURN_IF_ERROR(load_model());
  const bool needs_y = !loss_.starts_with("output:");
  const bool divides = validation_path_.empty() && validation_share_ > 0;
  const double test_share = divides && test_path_.empty() ? validation_share_ : 0;
  const std::vector<double> shares =
      divides ? std::vector<double>{1 - validation_share_ - test_share, validation_share_, test_share}
              : std::vector<double>{1};
  const std::string& path = context.run.data_dir;
  if (target_.empty() && std::filesystem::is_regular_file(path) && !SafetensorsFile::open(path).ok()) {
    return context.parser.invalid("target", "not given", "--target COLUMN for a table, or a .safetensors file");
  }
  if (!target_.empty()) {
    TRAINKIT_ASSIGN_OR_RETURN(const Table table, Table::open(path));
    TRAINKIT_ASSIGN_OR_RETURN(columns_,
                              learn_columns(table, shares, model_->inputs(), {.target = target_, .ignore = ignore_}));
  }
  TRAINKIT_ASSIGN_OR_RETURN(const ModelData data, open_rows(path, needs_y));
  TRAINKIT_ASSIGN_OR_RETURN(ModelTask made, make_task(loss_, model_, data));
  const auto open_more = [&](const std::string& more) -> absl::StatusOr<std::shared_ptr<const Dataset>> {
    if (more.empty()) return nullptr;
    TRAINKIT_ASSIGN_OR_RETURN(const ModelData other, open_rows(more, needs_y));
    return other.rows;
  };
  using Parts = std::vector<std::shared_ptr<const Dataset>>;
  const Parts parts = divides ? random_split(data.rows, shares) : Parts{data.rows};
  const std::shared_ptr<const Dataset> training = parts[0];
  TRAINKIT_ASSIGN_OR_RETURN(std::shared_ptr<const Dataset> validation, open_more(validation_path_));
  TRAINKIT_ASSIGN_OR_RETURN(std::shared_ptr<const Dataset> test, open_more(test_path_));
  if (divides) validation = parts[1];
  if (test_share > 0) test = parts[2];
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

absl::Status TrainApp::save(const RunOptions& run) const {
  return target_.empty() ? absl::OkStatus() : columns_.save(run.output_dir + "/" + kColumns);
}

std::vector<AppCommand> TrainApp::commands() {
  return {predict_command(
      *this, [this](TrainedRun& run) { return rows_to_predict(run); }, "DATA")};
}

absl::StatusOr<RowsToPredict> TrainApp::rows_to_predict(TrainedRun& run) {
  TRAINKIT_RETURN_IF_ERROR(load_model());
  if (!target_.empty()) {
    TRAINKIT_ASSIGN_OR_RETURN(const std::string stored, run.file(kColumns, "its columns"));
    TRAINKIT_ASSIGN_OR_RETURN(columns_, TableSchema::load(stored));
  }
  TRAINKIT_ASSIGN_OR_RETURN(ModelData data, open_rows(run.words.front(), /*needs_y=*/false));
  if (target_.empty()) {
    TRAINKIT_ASSIGN_OR_RETURN(const ModelData trained, open_rows(run.options.data_dir, /*needs_y=*/false));
    data.classes = trained.classes;
  }
  TRAINKIT_ASSIGN_OR_RETURN(ModelTask made, make_task(loss_, model_, data));
  if (!made.task) {
    return to_status({.exit_code = ExitCode::kUsage,
                      .id = "cli.unused",
                      .field = "loss",
                      .problem = "predict is for classification and regression",
                      .got = loss_});
  }
  return RowsToPredict{copies(), made.task, data.rows, {}, data.notes};
}

}  // namespace trainkit::train
