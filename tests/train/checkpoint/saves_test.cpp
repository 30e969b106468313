// When a Trainer saves, which checkpoints it keeps, and how it handles a failed save.
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "test_util.h"
#include "train/loop_util.h"
#include "trainkit/core/error.h"
#include "trainkit/data/sampler.h"
#include "trainkit/optim/adam.h"
#include "trainkit/train/checkpoint.h"
#include "trainkit/train/trainer.h"
#include "trainkit/train/weights.h"

using namespace trainkit;
using namespace trainkit::test;
namespace fs = std::filesystem;

namespace {

/// A parameter so large that one save takes as long as many steps.
struct HeavyNetImpl : torch::nn::Module {
  HeavyNetImpl()
      : net(register_module("net", TinyNet(0.0))), ballast(register_parameter("ballast", torch::ones({4 << 20}))) {}
  at::Tensor forward(const at::Tensor& x) { return net(x) * ballast.mean(); }
  TinyNet net;
  at::Tensor ballast;
};
TORCH_MODULE(HeavyNet);

struct Printed final : Logger {
  void log(const LogRecord& record) override { records.push_back(record); }
  absl::Status flush() override { return absl::OkStatus(); }
  void print(std::string_view line) override { lines += std::string(line) + "\n"; }
  std::string lines;
  std::vector<LogRecord> records;
};

template <class Net>
struct Run {
  Run() {
    torch::manual_seed(11);
    devices = DeviceReplicator::create([] { return Net(); }).value();
    loader = Prefetcher::create(tiny_dataset(52), RandomSampler(52, {.seed = 3}), {.batch_size = 4}).value();
    validation = Prefetcher::create(tiny_dataset(8), SequentialSampler(8), {.batch_size = 8}).value();
  }
  absl::StatusOr<TrainerResult> operator()(const TrainerOptions& options,
                                           std::function<void(int64_t, Metrics&)> on_evaluation = nullptr) {
    auto trainer = Trainer::create(*devices, AdamW({.lr = 1e-2, .capturable = capturable}), options).value();
    return trainer.fit(
        *loader,
        [](Net& model, const Batch& batch) { return at::cross_entropy_loss(model->forward(batch["x"]), batch["y"]); },
        {.validation = options.eval_every ? validation.get() : nullptr,
         .on_evaluation = std::move(on_evaluation),
         .logger = &logger});
  }
  std::unique_ptr<DeviceReplicator> devices;
  std::unique_ptr<Prefetcher> loader, validation;
  Printed logger;
  bool capturable = false;
};

std::vector<std::string> checkpoints_in(const std::string& output_dir) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(output_dir + "/checkpoints")) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step-")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

TEST_CASE("Milestones are saved between regular saves and are kept", "[train][saves]") {
  const TempDir dir;
  Run<TinyNet> run;
  const auto result = run(
      {.max_epochs = 0, .max_steps = 15, .save_every = 4, .output_dir = dir / "run", .keep_last = 1, .keep_every = 6});
  REQUIRE(result.status() == absl::OkStatus());
  CHECK(checkpoints_in(dir / "run") == std::vector<std::string>{"step-00000006", "step-00000012", "step-00000015"});
  const auto refused = Trainer::create(*run.devices, AdamW(), {.keep_every = 5}).status();
  CHECK_THAT(error_line(refused), Catch::Contains("keep_every needs save_every"));
}

TEST_CASE("A checkpoint stores the learning rate of its step if the optimizer keeps the rate with the parameters",
          "[train][saves]") {
  const TempDir dir;
  TrainerOptions options{.max_epochs = 0, .max_steps = 6, .save_every = 6, .output_dir = dir / "run"};
  options.schedule = create_schedule({.name = "cosine", .total_steps = 20}).value();
  Run<TinyNet> run;
  run.capturable = true;
  REQUIRE(run(options).ok());
  const auto saved = load_checkpoint({.folder = dir / "run/checkpoints", .step = 6}).value();
  CHECK(std::get<double>(saved.state.at("optimizer.lr")) == 1e-2 * options.schedule->factor(6));
}

TEST_CASE("A checkpoint written in the background contains the step in its name", "[train][saves]") {
  const TempDir dir;
  TrainerOptions options{.max_epochs = 0, .max_steps = 12, .save_every = 4, .output_dir = dir / "run", .keep_last = 0};
  REQUIRE(Run<HeavyNet>()(options).ok());
  REQUIRE(checkpoints_in(dir / "run") == std::vector<std::string>{"step-00000004", "step-00000008", "step-00000012"});
  for (const int64_t step : {4, 8}) {
    options.max_steps = step;
    options.save_every = step;
    options.output_dir = dir / "alone" + std::to_string(step);
    Run<HeavyNet> alone;
    REQUIRE(alone(options).ok());  // nothing changes while its only save is written
    const auto saved = load_checkpoint({.folder = dir / "run/checkpoints", .step = step});
    const auto expected = load_checkpoint({.folder = options.output_dir + "/checkpoints", .step = step});
    REQUIRE(saved.status() == absl::OkStatus());
    REQUIRE(expected.status() == absl::OkStatus());
    const NamedTensors weights = named_tensors(*alone.devices->module());
    REQUIRE(saved->model.size() == weights.size());
    for (const auto& [name, tensor] : weights) {
      INFO("step " << step << ", " << name);
      const auto found = std::find_if(saved->model.begin(), saved->model.end(),
                                      [&name = name](const auto& other) { return other.first == name; });
      REQUIRE(found != saved->model.end());
      CHECK(at::equal(found->second, tensor));
    }
    for (const auto part : {&CheckpointContents::model, &CheckpointContents::optimizer}) {
      const NamedTensors &found = (*saved).*part, &wanted = (*expected).*part;
      REQUIRE(found.size() == wanted.size());
      for (size_t i = 0; i < found.size(); ++i) {
        INFO("step " << step << ", " << found[i].first);
        CHECK(found[i].first == wanted[i].first);
        CHECK(at::equal(found[i].second, wanted[i].second));
      }
    }
  }
}

TEST_CASE("Records say for which share of their time a checkpoint was written", "[train][saves]") {
  const TempDir dir;
  Run<HeavyNet> run;
  REQUIRE(run({.max_epochs = 0, .max_steps = 12, .log_every = 1, .save_every = 6, .output_dir = dir / "run"}).ok());
  REQUIRE(run.logger.records.size() == 12);
  for (const LogRecord& record : run.logger.records) {
    const double* share = record.find("save_fraction");
    INFO(record.step);
    if (share) CHECK((*share > 0 && *share <= 1));
    if (record.step <= 6) CHECK_FALSE(share);  // the record of a step precedes its save
    if (record.step == 7) CHECK(share);
  }
}

TEST_CASE("An evaluation finds the checkpoints of all earlier steps on disk", "[train][saves]") {
  const TempDir dir;
  std::vector<int64_t> latest;
  const auto on_evaluation = [&](int64_t, Metrics&) {
    const auto found = resolve_checkpoint("latest", dir / "run");
    latest.push_back(found.ok() ? found->step : -1);
  };
  REQUIRE(
      Run<HeavyNet>()({.max_epochs = 0, .max_steps = 12, .eval_every = 3, .save_every = 2, .output_dir = dir / "run"},
                      on_evaluation)
          .ok());
  CHECK(latest == std::vector<int64_t>{2, 4, 8, 10});  // evaluations precede the save of their step
}

TEST_CASE("A failed evaluation does not prevent the save that is due, and the resumed run evaluates again",
          "[train][saves]") {
  const TempDir dir;
  TrainerOptions options{.max_steps = 12, .plateau = PlateauOptions{.factor = 0.5, .patience = 0}};
  options.eval_every = options.save_every = 4;
  options.keep_last = 0;
  std::vector<int64_t> evaluated;
  const auto worse = [&](int64_t step, Metrics& metrics) {
    evaluated.push_back(step);
    metrics["loss"] = static_cast<double>(step);  // lowers the learning rate each time
  };
  options.output_dir = dir / "whole";
  Run<TinyNet> whole;
  REQUIRE(whole(options, worse).ok());
  for (const int64_t fails_at : {4, 12}) {
    CAPTURE(fails_at);
    options.output_dir = dir / ("run" + std::to_string(fails_at));
    options.resume = {};
    Run<TinyNet> broken;
    const auto failed = broken(options, [&](int64_t step, Metrics& metrics) {
      if (step == fails_at) throw std::runtime_error("the scores cannot be computed");
      worse(step, metrics);
    });
    CHECK_THAT(error_line(failed.status()), Catch::Contains("the scores cannot be computed"));
    REQUIRE(resolve_checkpoint("latest", options.output_dir).value().step == fails_at);
    options.resume = "latest";
    evaluated.clear();
    Run<TinyNet> resumed;
    REQUIRE(resumed(options, worse).status() == absl::OkStatus());
    CHECK(evaluated.front() == fails_at);
    const NamedTensors expected = named_tensors(*whole.devices->module());
    const NamedTensors weights = named_tensors(*resumed.devices->module());
    for (size_t i = 0; i < weights.size(); ++i) CHECK(at::equal(weights[i].second, expected[i].second));
  }
}

TEST_CASE("An older checkpoint into which the user has put something stays and stops no other", "[train][saves]") {
  const TempDir dir;
  Run<TinyNet> run;
  const auto add = [&](int64_t step, Metrics&) {
    if (step == 4) fs::create_directories(dir / "run/checkpoints/step-00000002/notes");
  };
  const auto result =
      run({.max_steps = 12, .eval_every = 4, .save_every = 2, .output_dir = dir / "run", .keep_last = 1}, add);
  REQUIRE(result.status() == absl::OkStatus());
  CHECK(checkpoints_in(dir / "run") == std::vector<std::string>{"step-00000002", "step-00000012"});
  CHECK(fs::exists(dir / "run/checkpoints/step-00000002/notes"));
  // The next run in this folder starts all the same.
  Run<TinyNet> next;
  CHECK(next({.max_steps = 14, .save_every = 2, .output_dir = dir / "run", .resume = "latest"}).ok());
}

TEST_CASE("A failed save ends the run with exit code 6, or logs a warning and the run continues", "[train][saves]") {
  for (const bool continues : {false, true}) {
    const TempDir dir;
    Run<TinyNet> run;
    // From step 6 a file has the name of the checkpoint of step 8.
    const auto in_the_way = [&](int64_t step, Metrics&) {
      if (step == 6) std::ofstream(dir / "run/checkpoints/step-00000008") << "mine";
    };
    const auto result = run({.max_epochs = 0,
                             .max_steps = 200,
                             .eval_every = 6,
                             .save_every = 4,
                             .output_dir = dir / "run",
                             .continue_on_save_error = continues},
                            in_the_way);
    INFO(result.status());
    CHECK(std::ifstream(dir / "run/checkpoints/step-00000008").get() == 'm');
    const auto latest = resolve_checkpoint("latest", dir / "run");
    REQUIRE(latest.ok());
    CHECK(verify_checkpoint(*latest) == absl::OkStatus());
    if (continues) {
      REQUIRE(result.ok());
      CHECK(result->steps == 200);
      CHECK(latest->step == 200);
      CHECK_THAT(run.logger.lines,
                 Catch::Contains("step-00000008: is a link or a file, expected a checkpoint folder") &&
                     Catch::Contains("continuing with the last good checkpoint"));
    } else {
      CHECK(exit_code(result.status()) == ExitCode::kStorage);
      CHECK(latest->step == 4);
    }
  }
}
