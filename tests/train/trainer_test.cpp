#include "trainkit/train/trainer.h"

#include <ATen/record_function.h>
#include <signal.h>

#include <cmath>

#include "loop_util.h"
#include "test_util.h"
#include "train/validation.h"
#include "trainkit/optim/adam.h"
#include "trainkit/optim/sgd.h"
#include "trainkit/train/checkpoint.h"
#include "trainkit/train/weights.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

/// Keeps logged values.
class RecordingLogger final : public Logger {
 public:
  void log(const LogRecord& record) override { records.push_back(record); }
  absl::Status flush() override { return absl::OkStatus(); }
  absl::Status rewind(int64_t step) override {
    std::erase_if(records, [&](const LogRecord& record) { return record.step > step; });
    return absl::OkStatus();
  }
  void print(std::string_view line) override { lines.emplace_back(line); }
  std::vector<LogRecord> records;
  std::vector<std::string> lines;
};

std::unique_ptr<Prefetcher> tiny_loader(int64_t rows, int64_t batch_size, int num_workers = 0) {
  return Prefetcher::create(tiny_dataset(rows), RandomSampler(rows, {.seed = 3}),
                            {.batch_size = batch_size, .num_workers = num_workers, .persistent_workers = true})
      .value();
}

struct Outcome {
  TrainerResult result;
  NamedTensors weights;
  std::vector<std::pair<int64_t, double>> losses;             // logged
  std::vector<double> lrs = {};                               // logged
  std::vector<std::pair<int64_t, std::string>> records = {};  // step and split of all logged records, in order
};

/// One run from a fixed seed with dropout, Adam state, a schedule, accumulation over an uneven epoch, and evaluation.
absl::StatusOr<Outcome> run(const TrainerOptions& options, int64_t stop_at = -1, int num_workers = 0) {
  torch::manual_seed(11);
  auto devices = DeviceReplicator::create([] { return TinyNet(); }).value();
  auto loader = tiny_loader(/*rows=*/52, /*batch_size=*/4, num_workers);
  auto validation = tiny_loader(16, 8);
  auto trainer = Trainer::create(*devices, AdamW({.lr = 1e-2}), options).value();
  RecordingLogger logger;
  FitOptions fit{.validation = validation.get(), .logger = &logger};
  int64_t calls = 0;
  auto result = trainer.fit(
      *loader,
      [&](TinyNet& model, const Batch& batch) {
        // The signal arrives in the middle of a step, between two micro-batches.
        if (model->is_training() && ++calls == stop_at) raise(SIGTERM);
        return tiny_loss(model, batch);
      },
      fit);
  if (!result.ok()) return result.status();
  Outcome outcome{*result, {}, {}};
  for (const auto& [name, tensor] : named_tensors(*devices->module()))
    outcome.weights.emplace_back(name, tensor.clone());
  for (const LogRecord& record : logger.records) {
    outcome.records.emplace_back(record.step, record.split);
    if (record.split != "train") continue;
    outcome.losses.emplace_back(record.step, *record.find("loss"));
    outcome.lrs.push_back(record.lr.at(0));
  }
  return outcome;
}

TrainerOptions base_options(const std::string& output_dir, int64_t steps) {
  return {.max_epochs = 0,
          .max_steps = steps,
          .grad_accum_steps = 2,
          .grad_clip = 1.0,
          .schedule = create_schedule({.name = "cosine", .total_steps = steps, .warmup_steps = 5}).value(),
          .log_every = 1,
          .eval_every = 10,
          .save_every = 1000,
          .output_dir = output_dir,
          .handle_signals = true};
}

bool same_bits(const NamedTensors& a, const NamedTensors& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].first != b[i].first || !at::equal(a[i].second, b[i].second)) return false;
  }
  return true;
}

}  // namespace

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

TEST_CASE("A run stopped at any step and resumed has the bits of an uninterrupted run", "[train][trainer][resume]") {
  const TempDir whole_dir;
  const Outcome whole = run(base_options(whole_dir / "run", 50)).value();
  REQUIRE(whole.losses.size() == 50);
  // 2 micro-batches per step; an epoch of 13 batches ends with a step of one. The last step has batches 92 and 93.
  const int64_t stride = environment("TRAINKIT_TEST_FULL").empty() ? 14 : 2;  // --full: every step
  for (int64_t stop_at = 1; stop_at <= 93; stop_at += stride) {
    const TempDir dir;
    TrainerOptions options = base_options(dir / "run", 50);
    const Outcome first = run(options, stop_at).value();
    REQUIRE(first.result.reason == ExitReason::kSignal);
    REQUIRE(first.result.signal == SIGTERM);
    options.resume = "latest";
    const Outcome second = run(options, -1, /*num_workers=*/static_cast<int>(stop_at % 3)).value();
    INFO("stopped in micro-batch " << stop_at << ", after step " << first.result.steps);
    REQUIRE(second.result.steps == 50);
    REQUIRE(same_bits(second.weights, whole.weights));
    auto losses = first.losses;
    losses.insert(losses.end(), second.losses.begin(), second.losses.end());
    REQUIRE(losses == whole.losses);
    REQUIRE(second.result.best_evaluation == whole.result.best_evaluation);
  }
}

TEST_CASE("A run stopped in its last step and resumed has the records and position of an uninterrupted run",
          "[train][trainer][resume]") {
  for (const bool by_epochs : {false, true}) {
    CAPTURE(by_epochs);
    const auto options = [&](const std::string& folder) {
      TrainerOptions settings = base_options(folder, by_epochs ? 14 : 13);  // 2 epochs are 14 steps
      settings.log_every = 4;
      if (by_epochs) {
        settings.max_steps = 0;
        settings.max_epochs = 2;
      }
      return settings;
    };
    const TempDir dir;
    const Outcome whole = run(options(dir / "whole")).value();
    TrainerOptions settings = options(dir / "stopped");
    const Outcome stopped = run(settings, by_epochs ? 26 : 25).value();
    CHECK(stopped.result.signal == SIGTERM);
    settings.resume = "latest";
    const Outcome resumed = run(settings).value();
    CHECK(resumed.result.steps_run == 0);
    CHECK(resumed.result.reason == whole.result.reason);
    auto losses = stopped.losses;
    losses.insert(losses.end(), resumed.losses.begin(), resumed.losses.end());
    CHECK(losses == whole.losses);
    auto records = stopped.records;
    records.insert(records.end(), resumed.records.begin(), resumed.records.end());
    CHECK(records == whole.records);
    CHECK(same_bits(resumed.weights, whole.weights));
    const auto place = [&](const std::string& name) {
      const StateDict state =
          load_checkpoint_state({.folder = dir / (name + "/checkpoints"), .step = whole.result.steps}).value();
      return std::pair(get_state<int64_t>(state, "loader.epoch").value(),
                       get_state<int64_t>(state, "loader.rows").value());
    };
    CHECK(place("stopped") == place("whole"));
  }
}

TEST_CASE("Resuming a finished run trains no step and is no error", "[train][trainer][resume]") {
  const TempDir dir;
  TrainerOptions options = base_options(dir / "run", 8);
  const Outcome first = run(options).value();
  options.resume = "latest";
  const Outcome second = run(options).value();
  CHECK(second.result.steps == 8);
  CHECK(second.result.steps_run == 0);
  CHECK(same_bits(first.weights, second.weights));
}

TEST_CASE("A resumed run keeps the learning rate of its checkpoint and logs the rate that it ignores",
          "[train][trainer][resume]") {
  const TempDir dir;
  auto devices = DeviceReplicator::create([] { return TinyNet(); }).value();
  const auto loader = tiny_loader(52, 4);
  RecordingLogger logger;
  const auto fit = [&](double lr, const TrainerOptions& options) {
    auto trainer = Trainer::create(*devices, AdamW({.lr = lr}), options).value();
    REQUIRE(trainer.fit(*loader, tiny_loss, {.logger = &logger}).ok());
    return trainer.optimizer().lr();
  };
  TrainerOptions options = {.max_epochs = 0, .max_steps = 4, .save_every = 2, .output_dir = dir.path()};
  SECTION("with a schedule") { options.schedule = create_schedule({.name = "linear", .total_steps = 20}).value(); }
  SECTION("without one") {}
  fit(1e-2, options);
  options.max_steps = 6;
  options.resume = "latest";
  const double kept = fit(1e-2, options);
  CHECK(logger.lines.empty());
  CHECK(fit(3e-2, options) == kept);
  REQUIRE(logger.lines.size() == 1);
  CHECK_THAT(logger.lines[0], Catch::Contains("checkpoint's learning rate 0.01; 0.03 is ignored"));
}

TEST_CASE("Resuming without a checkpoint is an error with exit code 5", "[train][trainer][resume]") {
  const TempDir dir;
  TrainerOptions options = base_options(dir / "run", 8);
  options.resume = "latest";
  CHECK(exit_code(run(options).status()) == ExitCode::kWeights);
}

TEST_CASE("A checkpoint of another model is refused with its name", "[train][trainer][resume]") {
  const TempDir dir;
  TrainerOptions options = base_options(dir / "run", 8);
  REQUIRE(run(options).ok());
  options.resume = "latest";
  auto devices = DeviceReplicator::create([] { return torch::nn::Linear(8, 4); }).value();
  auto loader = tiny_loader(52, 4);
  auto trainer = Trainer::create(*devices, AdamW({.lr = 1e-2}), options).value();
  const auto result = trainer.fit(*loader, [](torch::nn::Linear& model, const Batch& b) {
    return at::cross_entropy_loss(model->forward(b["x"]), b["y"]);
  });
  CHECK(exit_code(result.status()) == ExitCode::kWeights);
  CHECK(error_of(result.status())->id == "weights.match");
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

TEST_CASE("A run that ended by early stopping stays finished when it is resumed", "[train][trainer][resume]") {
  const TempDir dir;
  TrainerOptions options = base_options(dir / "run", 1000);
  options.monitor_higher_is_better = true;
  options.early_stopping = 2;
  const Outcome first = run(options).value();
  REQUIRE(first.result.reason == ExitReason::kEarlyStopping);
  options.resume = "latest";
  const Outcome second = run(options).value();
  CHECK(second.result.reason == ExitReason::kEarlyStopping);
  CHECK(second.result.steps_run == 0);
  CHECK(second.result.best_step == first.result.best_step);
  CHECK(same_bits(first.weights, second.weights));
  options.early_stopping = 3;  // more patience: the run continues
  CHECK(run(options).value().result.steps_run == 10);
}

TEST_CASE("A last evaluation interrupted by a signal runs on resume", "[train][trainer][resume]") {
  const TempDir dir;
  TrainerOptions options = base_options(dir / "run", 13);
  const Outcome first = run(options, /*stop_at=*/25).value();  // in the first half of the last step
  REQUIRE(first.result.steps == 13);
  REQUIRE(first.result.reason == ExitReason::kSignal);
  REQUIRE(first.result.best_step == 10);
  options.resume = "latest";
  const Outcome second = run(options).value();
  CHECK(second.result.steps_run == 0);
  CHECK(second.result.evaluation.contains("loss"));
  CHECK(second.result.best_step == 13);
  const Outcome third = run(options).value();  // it is kept
  CHECK(third.result.best_evaluation == second.result.best_evaluation);
  CHECK(third.result.evaluation.empty());
}

TEST_CASE("The checkpoint of the last step contains the last evaluation", "[train][trainer][resume]") {
  // If it were also saved before, a kill in between would leave a finished run without its evaluation.
  struct Watch final : Logger {
    void log(const LogRecord& record) override { evaluated |= record.split == "val"; }
    absl::Status flush() override {
      saved_unevaluated |= !evaluated;
      return absl::OkStatus();
    }
    bool evaluated = false, saved_unevaluated = false;
  } watch;
  const TempDir dir;
  for (const bool by_steps : {true, false}) {
    auto devices = DeviceReplicator::create([] { return TinyNet(); }).value();
    auto loader = tiny_loader(52, 4), validation = tiny_loader(16, 8);
    auto trainer = Trainer::create(*devices, SGD({.lr = 1e-2}),
                                   {.max_epochs = by_steps ? 0 : 1,
                                    .max_steps = by_steps ? 13 : 0,
                                    .save_every = 13,
                                    .output_dir = dir / (by_steps ? "steps" : "epochs")})
                       .value();
    watch.evaluated = false;
    REQUIRE(trainer.fit(*loader, tiny_loss, {.validation = validation.get(), .logger = &watch}).value().steps == 13);
    CHECK_FALSE(watch.saved_unevaluated);
  }
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
    auto trainer = Trainer::create(*devices, SGD({.lr = 1e-2}), {.max_steps = 6, .eval_every = 4}).value();
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

TEST_CASE("A trainer without a limit is refused", "[train][trainer]") {
  auto devices = DeviceReplicator::create([] { return TinyNet(); }).value();
  const absl::Status refused = Trainer::create(*devices, SGD({.lr = 1e-2}), {}).status();
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
    REQUIRE(optimizer.device_group_lrs().size() == (capturable ? 2 : 0));
    watched_lrs = capturable ? optimizer.device_group_lrs()[0].storage().data() : nullptr;
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
    CHECK(host[i][0] == Approx(1e-2 * (1 - static_cast<double>(i + 1) / 26)).margin(1e-12));
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

TEST_CASE("evaluate averages over all rows in evaluation mode and restores the mode", "[train][evaluate]") {
  torch::manual_seed(2);
  auto devices = DeviceReplicator::create([] { return TinyNet(0.5); }).value();
  devices->module()->train();
  TinyNet model(std::dynamic_pointer_cast<TinyNetImpl>(devices->module()));
  const auto dataset = tiny_dataset(10);
  auto ragged = Prefetcher::create(dataset, SequentialSampler(10), {.batch_size = 4}).value();
  auto whole = Prefetcher::create(dataset, SequentialSampler(10), {.batch_size = 10}).value();
  const LossFunction loss = make_loss_function(tiny_loss);
  const double in_parts = evaluate(*devices, *ragged, loss).value().at("loss");
  CHECK(devices->module()->is_training());
  CHECK(in_parts == Approx(evaluate(*devices, *whole, loss).value().at("loss")).epsilon(1e-6));
  CHECK(in_parts == evaluate(*devices, *ragged, loss).value().at("loss"));
}

TEST_CASE("evaluate reports each batch, with one replica and with several", "[train][evaluate]") {
  for (const int64_t replicas : {1, 2}) {
    auto devices = DeviceReplicator::create([] { return TinyNet(); }, {.cpu_replicas = replicas}).value();
    auto loader = Prefetcher::create(tiny_dataset(10), SequentialSampler(10), {.batch_size = 4}).value();
    std::vector<std::pair<int64_t, int64_t>> calls;
    const auto count = [&](int64_t done, int64_t total) { calls.emplace_back(done, total); };
    REQUIRE(evaluate(*devices, *loader, make_loss_function(tiny_loss), Precision::kFp32, count).ok());
    CHECK(calls == std::vector<std::pair<int64_t, int64_t>>{{1, 3}, {2, 3}, {3, 3}});
  }
}

TEST_CASE("A long evaluation prints a line every ten seconds, a short one none", "[train][evaluate]") {
  RecordingLogger logger;
  double now = 100;
  const EvaluationProgress progress = progress_lines(logger, 7, [&] { return now; });
  for (int64_t batch = 1; batch <= 100; ++batch) {
    now += 0.25;
    progress(batch, 100);
  }
  CHECK(logger.lines == std::vector<std::string>{"evaluation after step 7: 40% (40/100 batches), 0:15 left",
                                                 "evaluation after step 7: 80% (80/100 batches), 0:05 left"});
  logger.lines.clear();
  const EvaluationProgress quick = progress_lines(logger, 8, [&] { return now; });
  for (int64_t batch = 1; batch <= 100; ++batch) quick(batch, 100);
  CHECK(logger.lines.empty());
}
