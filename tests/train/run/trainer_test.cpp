// The Trainer's loop: what it logs and reports, its limits and errors.
#include "trainkit/train/trainer.h"

#include <ATen/record_function.h>

#include <cmath>

#include "optim/optimizer_parts.h"
#include "test_util.h"
#include "train/loop_util.h"
#include "train/trainer_run.h"
#include "trainkit/optim/adam.h"
#include "trainkit/optim/sgd.h"

using namespace trainkit;
using namespace trainkit::test;

TEST_CASE("Training reduces the loss, logs at every interval and reports its result", "[train][trainer]") {
  const Outcome outcome = run({.max_epochs = 30, .log_every = 10, .eval_every = 50}).value();
  CHECK(outcome.result.reason == ExitReason::kMaxEpochs);
  CHECK(outcome.result.steps == 30 * 13);
  CHECK(outcome.result.epochs == 30.0);
  CHECK(outcome.losses.size() == 39);
  CHECK(outcome.losses.back().second < outcome.losses.front().second / 2);
  CHECK(outcome.result.best_evaluation.at("loss") <= outcome.result.evaluation.at("loss"));
  CHECK(outcome.result.best_step > 0);
}

TEST_CASE("Limits of steps, time and patience end the run", "[train][trainer]") {
  CHECK(run({.max_epochs = 5, .max_steps = 3}).value().result.steps == 3);
  CHECK(run({.max_steps = 20}).value().result.steps == 20);  // an epoch has 13
  const TrainerResult timed =
      run({.max_epochs = 0, .max_steps = 1'000'000, .max_time = std::chrono::milliseconds(30)}).value().result;
  CHECK(timed.reason == ExitReason::kMaxTime);
  CHECK(timed.steps < 1'000'000);
  // The metric should rise but falls, so the first evaluation stays the best.
  const TrainerResult stopped =
      run({.max_epochs = 200, .eval_every = 5, .monitor_higher_is_better = true, .early_stopping = 3}).value().result;
  CHECK(stopped.reason == ExitReason::kEarlyStopping);
  CHECK(stopped.steps == 20);
  CHECK(stopped.best_step == 5);
}

TEST_CASE("A plateau scheduler follows the monitored metric in the configured direction", "[train][trainer]") {
  TrainerOptions options{
      .max_epochs = 2, .plateau = PlateauOptions{.factor = 0.5, .patience = 0}, .log_every = 1, .eval_every = 5};
  const std::vector<double> falls = run(options).value().lrs;  // the loss improves at each evaluation
  CHECK(falls.back() == falls.front());
  options.monitor_higher_is_better = true;  // so each evaluation is worse
  const std::vector<double> rises = run(options).value().lrs;
  CHECK(rises.back() < 0.5 * rises.front());
}

TEST_CASE("A non-finite loss ends the run with exit code 9", "[train][trainer]") {
  auto devices = DeviceReplicator::create([] { return TinyNet(); }).value();
  auto loader = tiny_loader(52, 4);
  auto trainer = Trainer::create(*devices, SGD({.lr = 1e-2}), {.max_epochs = 10, .log_every = 1}).value();
  int call = 0;
  const auto result = trainer.fit(*loader, [&](TinyNet& model, const Batch& batch) {
    const at::Tensor loss = tiny_loss(model, batch);
    return ++call == 7 ? loss * NAN : loss;
  });
  CHECK(exit_code(result.status()) == ExitCode::kNumerics);
  CHECK(std::string(result.status().message()).find("step 7") != std::string::npos);
}

TEST_CASE("Exceptions in the loss become a Status", "[train][trainer]") {
  auto devices = DeviceReplicator::create([] { return TinyNet(); }).value();
  auto loader = tiny_loader(52, 4);
  auto trainer = Trainer::create(*devices, SGD({.lr = 1e-2}), {.max_epochs = 1}).value();
  const auto out_of_memory = trainer.fit(*loader, [](TinyNet&, const Batch&) -> at::Tensor {
    TORCH_CHECK_WITH(OutOfMemoryError, false, "no memory left");
  });
  CHECK(exit_code(out_of_memory.status()) == ExitCode::kOutOfMemory);
  CHECK_THAT(error_line(out_of_memory.status()), Catch::Contains("even with one row at a time: no memory left"));
}

TEST_CASE("An exception of the caller's own code says what was thrown and where, and is no bug of ours",
          "[train][trainer]") {
  auto devices = DeviceReplicator::create([] { return TinyNet(); }).value();
  auto loader = tiny_loader(52, 4), validation = tiny_loader(8, 8);
  const auto error = [&](const FitOptions& fit, int64_t bad_step) {
    auto trainer =
        Trainer::create(*devices, SGD({.lr = 1e-2}), {.max_steps = 6, .eval_every = fit.validation ? 4 : 0}).value();
    int64_t step = 0;
    const auto loss = [&](TinyNet& model, const Batch& batch) {
      if (model->is_training() && ++step == bad_step) throw std::range_error("no such class");
      return tiny_loss(model, batch);
    };
    const absl::Status status = trainer.fit(*loader, loss, fit).status();
    CHECK(exit_code(status) == ExitCode::kUsage);
    return error_line(status);
  };
  CHECK(error({}, 3) == "error[user.exception] step 3: the loss function threw std::range_error: no such class");
  const auto hooked_loss = [](TinyNet& model, const Batch& batch) {
    const at::Tensor loss = tiny_loss(model, batch);
    if (loss.requires_grad()) loss.register_hook([](const at::Tensor&) -> void { throw std::range_error("no slope"); });
    return loss;
  };
  auto trainer = Trainer::create(*devices, SGD({.lr = 1e-2}), {.max_steps = 6}).value();
  CHECK(error_line(trainer.fit(*loader, hooked_loss).status()) ==
        "error[user.exception] step 1: the backward pass threw std::range_error: no slope");
  const LossFunction bad_loss = [](torch::nn::Module&, const Batch&) -> LossOutput { TORCH_CHECK(false, "no mask"); };
  CHECK(error({.validation = validation.get(), .validation_loss = bad_loss}, -1) ==
        "error[user.exception] step 4: the loss function of the evaluation threw c10::Error: no mask");
  const auto bad_evaluation = [](int64_t, Metrics&) { throw 5; };
  CHECK_THAT(error({.validation = validation.get(), .on_evaluation = bad_evaluation}, -1),
             Catch::Contains("step 4: on_evaluation threw int"));
}

TEST_CASE("A loader that cannot allocate a batch is not an error of the step", "[train][trainer]") {
  /// A row of 4 PiB.
  struct Huge final : Dataset {
    int64_t size() const override { return 8; }
    const std::vector<FieldSpec>& fields() const override {
      static const std::vector<FieldSpec> fields = {{"x", at::kFloat, {int64_t{1} << 50}}};
      return fields;
    }
    void get(const RowKey&, const BatchView&, int64_t) const override {}
  };
  auto devices = DeviceReplicator::create([] { return TinyNet(); }).value();
  auto loader = Prefetcher::create(std::make_shared<Huge>(), SequentialSampler(8), {.batch_size = 1}).value();
  auto trainer = Trainer::create(*devices, SGD({.lr = 1e-2}), {.max_epochs = 1}).value();
  const absl::Status status = trainer.fit(*loader, tiny_loss).status();
  CHECK(exit_code(status) == ExitCode::kOutOfMemory);
  CHECK(error_line(status) == "error[memory.exhausted] cannot allocate a batch: out of host memory");
}

TEST_CASE("Every option out of range is reported at once", "[train][trainer]") {
  auto devices = DeviceReplicator::create([] { return TinyNet(); }).value();
  const auto trainer = Trainer::create(*devices, SGD({.lr = 1e-2}),
                                       {.max_epochs = -1, .grad_accum_steps = 0, .log_every = -2, .save_every = 5});
  CHECK(exit_code(trainer.status()) == ExitCode::kUsage);
  const std::string text(trainer.status().message());
  for (const char* name : {"max_epochs", "grad_accum_steps", "log_every", "output_dir"}) {
    CHECK(text.find(name) != std::string::npos);
  }
}

TEST_CASE("A run without a limit over a source that does not end is refused", "[train][trainer]") {
  auto devices = DeviceReplicator::create([] { return TinyNet(); }).value();
  auto trainer = Trainer::create(*devices, SGD({.lr = 1e-2}), {}).value();
  const auto loader = tiny_loader(8, 4);
  const absl::Status refused = trainer.fit(*loader, tiny_loss).status();
  CHECK(exit_code(refused) == ExitCode::kUsage);
  CHECK_THAT(error_line(refused), Catch::Contains("max_epochs or max_steps must be given"));
}

TEST_CASE("No batch to train on is an error of the data", "[train][trainer]") {
  auto devices = DeviceReplicator::create([] { return TinyNet(); }).value();
  auto loader = Prefetcher::create(tiny_dataset(3), SequentialSampler(3), {.batch_size = 4, .drop_last = true}).value();
  auto trainer = Trainer::create(*devices, SGD({.lr = 1e-2}), {.max_epochs = 1}).value();
  CHECK(exit_code(trainer.fit(*loader, tiny_loss).status()) == ExitCode::kData);
}

namespace {

/// The learning rates that CopyWatch looks for, and how often they were converted or copied as a whole, which would
/// synchronise on a GPU. Scalars that LateScalars takes are read one by one.
const void* watched_lrs = nullptr;
int64_t lr_copies = 0;

std::unique_ptr<at::ObserverContext> watch_copies(const at::RecordFunction& function) {
  if (std::string_view(function.name()) != "aten::_to_copy") return nullptr;
  const c10::IValue& source = function.inputs()[0];
  if (source.isTensor() && source.toTensor().storage().data() == watched_lrs) ++lr_copies;
  return nullptr;
}

}  // namespace

TEST_CASE("Records contain the learning rate of each group, wherever the optimizer stores it", "[train][trainer]") {
  const auto logged = [](bool capturable) {
    torch::manual_seed(11);
    auto devices = DeviceReplicator::create([] { return TinyNet(); }).value();
    auto loader = tiny_loader(52, 4);
    AdamW optimizer({.lr = 1e-2, .capturable = capturable});
    auto groups = default_param_groups(*devices->module());
    REQUIRE(groups.size() == 2);
    groups[1].lr_multiple = 0.5;
    optimizer.add_param_groups(std::move(groups));
    const std::vector<at::Tensor>& on_device = trainkit::detail::OptimizerParts::of(optimizer).rates.on_device();
    REQUIRE(on_device.size() == (capturable ? 2 : 0));
    watched_lrs = capturable ? on_device[0].storage().data() : nullptr;
    auto trainer = Trainer::create(*devices, std::move(optimizer),
                                   {.max_epochs = 2,
                                    .schedule = create_schedule({.name = "linear", .total_steps = 26}).value(),
                                    .log_every = 1})
                       .value();
    RecordingLogger logger;
    lr_copies = 0;
    const at::CallbackHandle watch =
        at::addThreadLocalCallback(at::RecordFunctionCallback(watch_copies).needsInputs(true));
    const absl::Status status = trainer.fit(*loader, tiny_loss, {.logger = &logger}).status();
    CHECK(lr_copies == 0);
    if (capturable) CHECK((trainer.optimizer().group_lrs().size() == 2 && lr_copies == 1));  // detects a copy
    at::removeCallback(watch);
    REQUIRE(status.ok());
    std::vector<std::vector<double>> lrs;
    for (const LogRecord& record : logger.records) {
      lrs.push_back(record.lr);
      CHECK(record.values.front().first == "loss");
      CHECK(std::isfinite(record.values.front().second));
    }
    return lrs;
  };
  const auto host = logged(false), device = logged(true);
  REQUIRE(host.size() == 26);
  REQUIRE(device.size() == host.size());
  for (size_t i = 0; i < host.size(); ++i) {
    INFO("step " << i + 1);
    REQUIRE(host[i].size() == 2);
    REQUIRE(device[i].size() == 2);
    CHECK(host[i][0] == Approx(1e-2 * (1 - static_cast<double>(i) / 26)).margin(1e-12));
    for (size_t group = 0; group < 2; ++group) CHECK(device[i][group] == Approx(host[i][group]).margin(1e-9));
  }
}

TEST_CASE("Throughput is also reported in the unit that the loss counts, if it has a name", "[train][trainer]") {
  const auto rates = [](const std::string& unit) {
    auto devices = DeviceReplicator::create([] { return TinyNet(); }).value();
    auto loader = tiny_loader(52, 4);
    auto trainer = Trainer::create(*devices, SGD({.lr = 1e-3}),
                                   {.max_epochs = 2, .grad_accum_steps = 2, .log_every = 5, .weight_unit = unit})
                       .value();
    RecordingLogger logger;
    const auto seven_tokens_a_row = [](TinyNet& model, const Batch& batch) {
      return LossOutput(tiny_loss(model, batch), 7.0 * static_cast<double>(batch.size()));
    };
    REQUIRE(trainer.fit(*loader, seven_tokens_a_row, {.logger = &logger}).ok());
    return logger.records;
  };
  const auto records = rates("tokens");
  REQUIRE(records.size() == 3);  // steps 5 and 10, and 14, the end of the second epoch
  for (const LogRecord& record : records) {
    REQUIRE(record.find("tokens_per_second"));
    CHECK(*record.find("tokens_per_second") == Approx(7 * *record.find("samples_per_second")).epsilon(1e-12));
  }
  for (const LogRecord& record : rates("")) CHECK_FALSE(record.find("tokens_per_second"));
}

TEST_CASE("planned_steps equals the number of steps that fit runs", "[train][trainer]") {
  const auto loader = tiny_loader(52, 4);
  CHECK(planned_steps(loader->batches_per_epoch(), {.max_epochs = 3}) == 39);
  CHECK(planned_steps(loader->batches_per_epoch(), {.max_epochs = 3, .grad_accum_steps = 2}) == 21);
  CHECK(planned_steps(loader->batches_per_epoch(), {.max_epochs = 3, .max_steps = 10}) == 10);
  CHECK(planned_steps(loader->batches_per_epoch(), {.max_epochs = 0, .max_steps = 10}) == 10);
}
