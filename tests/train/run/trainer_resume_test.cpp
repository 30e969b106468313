// A run that was stopped and resumed has the results of an uninterrupted run.
#include <signal.h>

#include <atomic>

#include "test_util.h"
#include "train/loop_util.h"
#include "train/run/run_state.h"
#include "train/trainer_run.h"
#include "trainkit/optim/adam.h"
#include "trainkit/optim/sgd.h"
#include "trainkit/train/checkpoint.h"
#include "trainkit/train/trainer.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

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

}  // namespace

TEST_CASE("SIGHUP stops as SIGTERM does, except under nohup", "[train][trainer]") {
  {
    const SignalWatch watch;
    raise(SIGHUP);
    CHECK(SignalWatch::stop_signal() == SIGTERM);
  }
  const auto previous = ::signal(SIGHUP, SIG_IGN);
  {
    const SignalWatch watch;
    raise(SIGHUP);
    CHECK(SignalWatch::stop_signal() == 0);
  }
  ::signal(SIGHUP, previous);
}

TEST_CASE("A run stopped at any step and resumed has the bits of an uninterrupted run", "[train][trainer][resume]") {
  const TempDir whole_dir;
  const Outcome whole = run(base_options(whole_dir / "run", 50)).value();
  REQUIRE(whole.losses.size() == 50);
  // 2 micro-batches per step; an epoch of 13 batches ends with a step of one. The last step has batches 92 and 93.
  const int64_t stride = is_full() ? 2 : 14;  // --full: every step
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

TEST_CASE("A resumed run counts the rows of all ranks of its checkpoint", "[train][trainer][resume]") {
  const TempDir dir;
  TrainerOptions options = base_options(dir / "run", 8);
  REQUIRE(run(options).ok());
  {
    auto contents = load_checkpoint({.folder = dir / "run/checkpoints", .step = 8}).value();
    contents.state["rows.digests"] = std::vector<int64_t>{1, 2};
    contents.state["rows.counts"] = std::vector<int64_t>{100, 20};
    REQUIRE(CheckpointStore::open(dir / "run").value().save(8, contents).ok());
  }
  options.resume = "latest";
  options.max_steps = 9;
  REQUIRE(run(options).ok());
  const StateDict state = load_checkpoint_state({.folder = dir / "run/checkpoints", .step = 9}).value();
  CHECK(get_state<std::vector<int64_t>>(state, "rows.counts").value() == std::vector<int64_t>{128});
}

TEST_CASE("A resumed run continues with the loss scale of its checkpoint", "[train][trainer][resume]") {
  const TempDir dir;
  const auto devices = DeviceReplicator::create([] { return TinyNet(); }).value();
  const auto loader = tiny_loader(8, 4);
  SGD optimizer({.lr = 1e-2});
  optimizer.add_param_groups(default_param_groups(*devices->module()));
  const auto parts = [&](GradScaler& scaler) {
    return RunParts{.devices = trainkit::detail::strategy_of(*devices),
                    .players = {{.optimizer = optimizer, .scheduler = nullptr}},
                    .scaler = scaler,
                    .source = loader.get()};
  };
  GradScaler saved({.init_scale = 8}), resumed;
  RunProgress progress{.step = 3};
  REQUIRE(CheckpointStore::open(dir.path()).value().save(3, collect_run(parts(saved), progress, {}, {}).value()).ok());
  REQUIRE(resume_run("latest", dir.path(), parts(resumed), {}, progress).ok());
  CHECK(resumed.get_scale().item<double>() == 8);
}

TEST_CASE("A resumed run keeps the split and the weight unit of its checkpoint", "[train][trainer][resume]") {
  const TempDir dir;
  TrainerOptions options{.max_steps = 2, .save_every = 10, .output_dir = dir / "run"};
  std::atomic<bool> fails = true;
  const auto fit = [&] {
    const auto devices = DeviceReplicator::create([] { return TinyNet(); }, {.cpu_replicas = 2}).value();
    const auto loader = tiny_loader(52, 8);
    auto trainer = Trainer::create(*devices, SGD({.lr = 1e-2}), options).value();
    const auto loss = [&](TinyNet& model, const Batch& batch) {
      if (fails.exchange(false)) C10_THROW_ERROR(OutOfMemoryError, "no memory");
      return LossOutput(tiny_loss(model, batch), batch["x"].square().sum().item<double>());
    };
    const int64_t split = trainer.fit(*loader, loss).value().split;
    const StateDict state = load_checkpoint_state(resolve_checkpoint("latest", options.output_dir).value()).value();
    return std::pair(split, get_state<double>(state, "trainer.weight_unit").value());
  };
  const auto [split, weight_unit] = fit();
  CHECK(split == 2);
  options.max_steps = 4;
  options.resume = "latest";
  const auto [split_of_resumed, weight_unit_of_resumed] = fit();
  CHECK(split_of_resumed == split);
  CHECK(weight_unit_of_resumed == weight_unit);
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
  options.eval_every = 0;
  auto devices = DeviceReplicator::create([] { return torch::nn::Linear(8, 4); }).value();
  auto loader = tiny_loader(52, 4);
  auto trainer = Trainer::create(*devices, AdamW({.lr = 1e-2}), options).value();
  const auto result = trainer.fit(*loader, [](torch::nn::Linear& model, const Batch& b) {
    return at::cross_entropy_loss(model->forward(b["x"]), b["y"]);
  });
  CHECK(exit_code(result.status()) == ExitCode::kWeights);
  CHECK(error_of(result.status())->id == "weights.match");
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
