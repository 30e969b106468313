// Common first mistakes. Each line marked with "error:" ends in one compiler error that contains the text after it; the
// test unit.train.mistakes compiles this file and compares.
#include <torch/nn/modules/linear.h>

#include "trainkit/app/app.h"
#include "trainkit/optim/adam.h"
#include "trainkit/train/evaluate.h"
#include "trainkit/train/step_memory.h"
#include "trainkit/train/trainer.h"

using namespace trainkit;

void loss_for_any_model(Trainer& trainer, Prefetcher& loader) {
  (void)trainer.fit(loader, [](auto& model, const Batch& batch) { return model->forward(batch["x"]).mean(); });
  // error: a loss function names the type of its model instead of auto
}

void loss_that_changes_its_batch(Trainer& trainer, Prefetcher& loader) {
  (void)trainer.fit(loader, [](torch::nn::Linear& model, Batch& batch) { return model->forward(batch["x"]).mean(); });
  // error: a loss function takes the model by reference and the batch as const Batch&
}

void loss_that_returns_a_number(Trainer& trainer, Prefetcher& loader) {
  (void)trainer.fit(loader, [](torch::nn::Linear&, const Batch&) { return std::string("0.5"); });
  // error: a loss function returns a scalar tensor or a trainkit::LossOutput
}

void losses_outside_of_fit(DeviceReplicator& devices, Prefetcher& loader, TrainStep& step, const Batch& batch) {
  const auto any = [](auto& model, const Batch& rows) { return model->forward(rows["x"]).mean(); };
  (void)evaluate(devices, loader, any);
  // error: a loss function names the type of its model instead of auto
  step.accumulate(batch, [](auto& model, const Batch& rows) { return model->forward(rows["x"]).mean(); });
  // error: a loss function names the type of its model instead of auto
  (void)FitOptions{.validation_loss = [](torch::nn::Linear& model, Batch& b) { return model->forward(b["x"]).mean(); }};
  // error: a loss function takes the model by reference and the batch as const Batch&
}

void losses_of_a_task(TrainingTask& task, StepRecipe& recipe) {
  task.loss = [](torch::nn::Linear model, Batch&& rows) { return model->forward(rows["x"]).mean(); };
  // error: a loss function takes the model by reference and the batch as const Batch&
  recipe.loss = [](torch::nn::Linear&, const Batch&) { return std::string("0.5"); };
  // error: a loss function returns a scalar tensor or a trainkit::LossOutput
}

void named_optimizer(DeviceReplicator& devices) {
  AdamW optimizer({.lr = 1e-3});
  (void)Trainer::create(devices, optimizer, {.max_epochs = 1});
  // error: Trainer takes over its optimizer: pass std::move(optimizer), or a temporary such as
}

void named_pointer(DeviceReplicator& devices) {
  auto optimizer = std::make_unique<AdamW>(AdamWOptions{.lr = 1e-3});
  (void)Trainer::create(devices, optimizer, {.max_epochs = 1});
  // error: Trainer takes over its optimizer: pass std::move(optimizer)
}

void reordered_options(DeviceReplicator& devices) {
  (void)Trainer::create(devices, AdamW({.lr = 1e-3}), {.max_steps = 10, .max_epochs = 5});
  // error: max_epochs
}

TrainerOptions reordered_returned_options() {
  return {.max_steps = 10, .max_epochs = 5};
  // error: max_epochs
}
