// Several calls of Trainer::fit, and the decisions of a run by its evaluations.
#include <cmath>
#include <filesystem>

#include "test_util.h"
#include "train/loop_util.h"
#include "train/trainer_run.h"
#include "trainkit/optim/adam.h"
#include "trainkit/optim/sgd.h"
#include "trainkit/train/checkpoint.h"
#include "trainkit/train/trainer.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

std::unique_ptr<DeviceReplicator> fit_devices() {
  torch::manual_seed(11);
  return DeviceReplicator::create([] { return TinyNet(); }).value();
}

/// Runs 6 steps with an evaluation after each, whose monitored score is the next of `scores`.
TrainerResult run_with_scores(std::vector<double> scores, int64_t early_stopping = 0) {
  const auto devices = fit_devices();
  const auto loader = tiny_loader(52, 4), validation = tiny_loader(8, 8);
  auto trainer = Trainer::create(*devices, SGD({.lr = 1e-2}),
                                 {.max_steps = static_cast<int64_t>(scores.size()),
                                  .eval_every = 1,
                                  .monitor = "score",
                                  .early_stopping = early_stopping})
                     .value();
  const auto on_evaluation = [&](int64_t step, Metrics& metrics) {
    metrics["score"] = scores.at(static_cast<size_t>(step - 1));
  };
  return trainer.fit(*loader, tiny_loss, {.validation = validation.get(), .on_evaluation = on_evaluation}).value();
}

}  // namespace

TEST_CASE("A second fit trains as many epochs more, from the rate that the optimizer was made with", "[train][fits]") {
  const bool capturable = GENERATE(false, true);
  const auto devices = fit_devices();
  const auto loader = tiny_loader(/*rows=*/10, /*batch_size=*/4);  // 3 steps per epoch, the last of 2 rows
  auto trainer = Trainer::create(*devices, AdamW({.lr = 0.1, .capturable = capturable}),
                                 {.max_epochs = 1, .schedule = step_lr(1, 0.1), .log_every = 1})
                     .value();
  RecordingLogger logger;
  for (const int64_t fit : {1, 2, 3}) {
    const TrainerResult result = trainer.fit(*loader, tiny_loss, {.logger = &logger}).value();
    CHECK(result.reason == ExitReason::kMaxEpochs);
    CHECK(result.steps_run == 3);
    CHECK(result.steps == 3 * fit);
    CHECK(result.epochs == static_cast<double>(fit));
  }
  REQUIRE(logger.records.size() == 9);
  for (size_t i = 0; i < 9; ++i) {
    CHECK(logger.records[i].step == static_cast<int64_t>(i) + 1);
    CHECK(logger.records[i].lr.at(0) == Approx(0.1 * std::pow(0.1, i % 3)));
  }
  CHECK(logger.records[2].epoch == 1.0);  // after a partial last batch
}

TEST_CASE("A second fit by steps writes checkpoints of new names, and a checkpoint of it resumes there",
          "[train][fits][resume]") {
  const TempDir dir;
  TrainerOptions options{.max_steps = 4, .save_every = 2, .output_dir = dir.path(), .keep_last = 0};
  const auto whole = fit_devices(), resumed = fit_devices();
  {
    const auto loader = tiny_loader(52, 4);
    auto trainer = Trainer::create(*whole, AdamW({.lr = 1e-2}), options).value();
    CHECK(trainer.fit(*loader, tiny_loss).value().steps == 4);
    CHECK(trainer.fit(*loader, tiny_loss).value().steps == 8);
  }
  for (const char* name : {"step-00000002", "step-00000004", "step-00000006", "step-00000008"}) {
    CHECK(std::filesystem::exists(dir / ("checkpoints/" + std::string(name))));
  }
  options.resume = dir / "checkpoints/step-00000006";
  options.save_every = 0;
  const auto loader = tiny_loader(52, 4);
  auto trainer = Trainer::create(*resumed, AdamW({.lr = 1e-2}), options).value();
  CHECK(trainer.fit(*loader, tiny_loss).value().steps_run == 0);  // the first one had ended
  const TrainerResult second = trainer.fit(*loader, tiny_loss).value();
  CHECK(second.steps_run == 2);
  CHECK(second.steps == 8);
  CHECK(same_bits(named_tensors(*resumed->module()), named_tensors(*whole->module())));
  CHECK(trainer.fit(*loader, tiny_loss).value().steps == 12);  // a third one trains
}

TEST_CASE("A Trainer trains all its epochs with a loader that another one has used", "[train][fits]") {
  const auto devices = fit_devices();
  const auto loader = tiny_loader(8, 4);
  for (int i = 0; i < 2; ++i) {
    auto trainer = Trainer::create(*devices, SGD({.lr = 1e-2}), {.max_epochs = 2}).value();
    CHECK(trainer.fit(*loader, tiny_loss).value().steps_run == 4);
  }
}

TEST_CASE("A first evaluation of NaN is worse than every later number, and no improvement", "[train][fits]") {
  const double nan = std::nan("");
  const TrainerResult later = run_with_scores({nan, 3.0, nan, 2.0, 4.0});
  CHECK(later.best_step == 4);
  CHECK(later.best_evaluation.at("score") == 2.0);
  const TrainerResult stopped = run_with_scores({nan, nan, 1.0}, /*early_stopping=*/2);
  CHECK(stopped.reason == ExitReason::kEarlyStopping);
  CHECK(stopped.steps == 2);
  CHECK(run_with_scores({nan, 3.0, 4.0, 2.0}, 2).steps == 4);
}

TEST_CASE("Evaluations that never happen are refused with the option that needs them", "[train][fits]") {
  const auto devices = fit_devices();
  const auto loader = tiny_loader(8, 4);
  auto trainer = Trainer::create(*devices, SGD({.lr = 1e-2}), {.max_epochs = 1, .eval_every = 2}).value();
  const absl::Status refused = trainer.fit(*loader, tiny_loss).status();
  CHECK(exit_code(refused) == ExitCode::kUsage);
  CHECK_THAT(error_line(refused), Catch::Contains("eval_every: evaluates nothing without a validation loader"));
  const absl::Status options =
      Trainer::create(*devices, SGD({.lr = 1e-2}), {.max_epochs = 1, .plateau = PlateauOptions{}, .early_stopping = 3})
          .status();
  CHECK_THAT(error_line(options), Catch::Contains("early_stopping needs eval_every"));
  CHECK_THAT(error_line(options), Catch::Contains("plateau needs eval_every"));
}

TEST_CASE("A resume after a plateau does not say that a learning rate is ignored", "[train][fits][resume]") {
  const TempDir dir;
  const auto devices = fit_devices();
  const auto loader = tiny_loader(52, 4), validation = tiny_loader(8, 8);
  TrainerOptions options{.max_steps = 4,
                         .plateau = PlateauOptions{.factor = 0.5, .patience = 0},
                         .eval_every = 1,
                         .save_every = 4,
                         .output_dir = dir.path(),
                         .monitor_higher_is_better = true};
  RecordingLogger logger;
  const auto fit = [&](double lr) {
    auto trainer = Trainer::create(*devices, SGD({.lr = lr}), options).value();
    REQUIRE(trainer.fit(*loader, tiny_loss, {.validation = validation.get(), .logger = &logger}).ok());
    return trainer.optimizer().lr();
  };
  CHECK(fit(0.02) < 0.02);
  options.resume = "latest";
  options.max_steps = 5;
  fit(0.02);
  CHECK(logger.lines.empty());
  fit(0.03);
  REQUIRE(logger.lines.size() == 1);
  CHECK_THAT(logger.lines[0], Catch::Contains("0.03 is ignored"));
}

TEST_CASE("A resume with another number of rows per step says so", "[train][fits][resume]") {
  const TempDir dir;
  const auto devices = fit_devices();
  TrainerOptions options{.max_steps = 2, .save_every = 2, .output_dir = dir.path()};
  RecordingLogger logger;
  const auto fit = [&](int64_t batch_size) {
    const auto loader = tiny_loader(52, batch_size);
    auto trainer = Trainer::create(*devices, SGD({.lr = 1e-2}), options).value();
    REQUIRE(trainer.fit(*loader, tiny_loss, {.logger = &logger}).ok());
  };
  fit(4);
  options.resume = "latest";
  fit(4);
  CHECK(logger.lines.empty());
  fit(2);
  REQUIRE(logger.lines.size() == 1);
  CHECK_THAT(logger.lines[0], Catch::Contains("written with 4 rows per step, and the run continues with 2"));
}

TEST_CASE("After a partial last batch a Prefetcher is at the end of its epoch, and seek there delivers nothing again",
          "[train][fits]") {
  const auto loader = tiny_loader(10, 4);
  int64_t batches = 0;
  while (!loader->at_epoch_end()) {
    REQUIRE(loader->next().value());
    CHECK(loader->position() == ++batches);
  }
  CHECK(batches == 3);
  loader->seek(loader->epoch(), loader->position());
  CHECK_FALSE(loader->next().value());
}
