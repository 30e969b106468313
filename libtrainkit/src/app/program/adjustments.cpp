#include "app/program/adjustments.h"

#include <fmt/format.h>
#include <torch/utils.h>

#include <algorithm>
#include <string>

#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/optim/adam.h"
#include "trainkit/train/step_memory.h"

namespace trainkit::detail {
namespace {

void fill_in_defaults(TrainingTask& task, const RunContext& context) {
  StepRecipe& recipe = task.recipe;
  if (task.task) {
    if (!recipe.loss) recipe.loss = task.task->training_loss();
    if (!task.validation_loss) task.validation_loss = task.task->validation_loss();
  }
  TORCH_CHECK(recipe.make_model && recipe.loss && task.training_set,
              "App::open must return a model factory, a loss or a task, and a training set");
  if (!recipe.make_optimizer) {
    recipe.make_optimizer = [run = context.run, replicas = context.placement.batch.replicas] {
      return std::make_unique<AdamW>(AdamWOptions{.lr = resolve_lr(run, replicas), .weight_decay = run.weight_decay});
    };
  }
  if (!recipe.dataset) recipe.dataset = task.training_set;
  if (!task.loss) task.loss = recipe.loss;
  if (!task.validation_loss) task.validation_loss = task.loss;
  if (!task.make_optimizer) {
    task.make_optimizer = [make = recipe.make_optimizer](const torch::nn::Module&) { return make(); };
  }
}

RunFacts fit_batch_to_rows(const ConfigParser& parser, RunOptions& run, const BatchPlan& plan, int64_t rows) {
  std::optional<int64_t>& batch = run.batch_size.value;
  if (!batch) return {};
  if (plan.replicas == 1 && run.global_batch_size && !parser.is_given("batch_size")) {
    batch = std::min(*batch, plan.batch_size);
  }
  if (!run.drop_last || parser.is_given("drop_last") || rows == 0 || rows >= *batch) return {};
  run.drop_last = false;
  return {
      {"warning:", fmt::format("the {} training rows are fewer than one batch of {}: each epoch is one smaller batch",
                               rows, *batch)}};
}

}  // namespace

absl::StatusOr<TrainingTask> open_task(App& app, RunContext& context) {
  torch::manual_seed(context.run.seed);
  TRAINKIT_ASSIGN_OR_RETURN(TrainingTask task, app.open(context));
  fill_in_defaults(task, context);
  TRAINKIT_RETURN_IF_ERROR(check_data(context.run, task.data_digest));
  const int64_t rows = task.order ? task.order->size() : task.training_set->size();
  for (auto& warning : fit_batch_to_rows(context.parser, context.run, context.placement.batch, rows)) {
    task.description.push_back(std::move(warning));
  }
  return task;
}

RunFacts drop_unused_evaluation(const ConfigParser& parser, bool has_validation, TrainerOptions& options) {
  if (has_validation && options.eval_every) return {};
  const std::string why = has_validation ? "--eval_every is 0; give the steps between evaluations"
                                         : "the run has no validation rows; keep some";
  RunFacts warnings;
  const auto warn = [&](const char* flag, bool is_on) {
    if (!is_on || !parser.is_given(flag)) return;
    warnings.emplace_back("warning:", fmt::format("--{} has no effect: {}", flag, why));
  };
  warn("eval_every", bool{options.eval_every});
  warn("early_stopping", options.early_stopping > 0);
  warn("scheduler", options.plateau.has_value());
  options.eval_every = 0;
  options.early_stopping = 0;
  options.plateau.reset();
  return warnings;
}

absl::Status check_last_batch(const Prefetcher& loader, const Placement& placement, const RunOptions& run,
                              const StepRecipe& recipe) {
  const int64_t rows = loader.sampler().size(), batch = loader.options().batch_size;
  const int64_t last = rows % batch == 0 ? batch : rows % batch;
  const auto devices = static_cast<int64_t>(placement.devices.size());
  const int64_t shares = replicator_options(run, placement, recipe).sync_batch_norm ? 1 : devices;
  const bool is_dropped = loader.options().drop_last && last < batch;
  const bool has_two_rows = last >= 2 * shares;  // that are normalised together
  if (is_dropped || has_two_rows || placement.ranks() > 1) return absl::OkStatus();
  const absl::Status step = record_step_memory(recipe, 1, 1).status();
  if (std::string(step.message()).find("more than 1 value per channel") == std::string::npos) return absl::OkStatus();
  return to_status({.exit_code = ExitCode::kData,
                    .id = "data.last_batch",
                    .problem = fmt::format("the last of {} training rows are a batch of {}, and BatchNorm cannot train "
                                           "on a single row of this size",
                                           rows, last),
                    .got = fmt::format("--{}drop_last --batch_size {}", run.drop_last ? "" : "no-",
                                       run.batch_size.value.value_or(batch)),
                    .expected = "at least two rows per device in each batch",
                    .hint = "leave them out (--drop_last), or use another --batch_size"});
}

}  // namespace trainkit::detail
