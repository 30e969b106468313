// Learning rates and freezing that the host sets, gradients that it reads, more validation sets, the best model.
#include "test_util.h"
#include "train/gan.h"
#include "train/trainer_run.h"
#include "trainkit/core/error.h"
#include "trainkit/optim/sgd.h"
#include "trainkit/train/checkpoint.h"
#include "trainkit/train/session.h"

using namespace trainkit;
using namespace trainkit::test;
using Catch::Contains;

namespace {

/// TinyNet in two groups: the hidden layer, frozen for the first steps if `from` > 0, and the rest.
AdamW in_groups(const DeviceReplicator& devices, int64_t from = 0) {
  AdamW optimizer({.lr = 1e-2});
  ParamGroup hidden{.params = {}, .name = "hidden", .trainable_from = from};
  ParamGroup rest{.params = {}, .lr_multiple = 2, .name = "rest"};
  for (NamedParameter& parameter : trainable_parameters(*devices.module())) {
    (parameter.name.starts_with("hidden") ? hidden : rest).params.push_back(parameter);
  }
  optimizer.add_param_groups({hidden, rest});
  return optimizer;
}

NamedTensors copies_of(const DeviceReplicator& devices) {
  NamedTensors copies;
  for (const auto& [name, tensor] : named_tensors(*devices.module())) copies.emplace_back(name, tensor.clone());
  return copies;
}

std::string message(const absl::Status& status) { return std::string(status.message()); }

}  // namespace

TEST_CASE("Rates and freezing that the host sets are in the log and in the checkpoint", "[train][session][resume]") {
  const TempDir dir;
  const auto run = [&](const std::string& name, int64_t steps, bool resumes) {
    torch::manual_seed(3);
    auto devices = DeviceReplicator::create([] { return TinyNet(); }).value();
    TrainerOptions options{.max_steps = steps, .log_every = 1, .save_every = 100, .output_dir = dir / name};
    if (resumes) options.resume = "latest";
    auto trainer = Trainer::create(*devices, in_groups(*devices), options).value();
    const auto loader = tiny_loader(40, 4);
    RecordingLogger logger;
    Session session = trainer.begin(*loader, tiny_loss, {.logger = &logger}).value();
    while (session.step().value()) {
      if (session.progress().step == 2) REQUIRE(session.set_lr("", 5e-3).ok());
      if (session.progress().step == 3) REQUIRE(session.set_lr("", "rest", 1e-3).ok());
      if (session.progress().step == 4) REQUIRE(session.set_trainable("hidden.*", false).ok());
    }
    session.finish().value();
    std::vector<std::vector<double>> lrs;
    for (const LogRecord& record : logger.records) lrs.push_back(record.lr);
    CHECK(logger.lines.empty());
    return std::pair(copies_of(*devices), lrs);
  };
  const auto [whole, lrs] = run("whole", 8, false);
  CHECK(lrs[1] == std::vector<double>{1e-2, 2e-2});
  CHECK(lrs[2] == std::vector<double>{5e-3, 1e-2});
  CHECK(lrs[3][0] == 5e-3);
  CHECK(lrs[3][1] == Approx(1e-3));
  const auto stopped = run("stopped", 5, false);
  CHECK(stopped.first[0].second.equal(run("shorter", 4, false).first[0].second));  // hidden.weight, frozen
  const auto [resumed, later] = run("stopped", 8, true);
  CHECK(same_bits(resumed, whole));
  CHECK(later.back() == lrs.back());
}

TEST_CASE("A rate of a schedule, of a player and of unknown names", "[train][session]") {
  const auto devices = DeviceReplicator::create([] { return Gan(); }).value();
  std::vector<Player> players = gan_players();
  players[0].schedule = step_lr(2, 0.5);
  auto trainer = Trainer::create(*devices, players, gan_fake, {.log_every = 1}).value();
  RecordingLogger logger;
  Session session = trainer.begin({.logger = &logger}).value();
  REQUIRE(session.set_lr("d", 1.0).ok());
  REQUIRE(session.set_lr("g", "no_decay", 0.25).ok());
  for (int64_t i = 0; i < 3; ++i) REQUIRE(session.step(gan_batch(i)).value());
  REQUIRE(session.set_lr("d", "decay", 0.5).ok());  // which the schedule multiplies
  REQUIRE(session.step(gan_batch(3)).value());
  CHECK_THAT(message(session.set_lr("critic", 1)), Contains("no player"));
  CHECK_THAT(message(session.set_lr("g", "heads", 1)), Contains("no group named 'heads'"));
  CHECK(exit_code(session.set_lr("g", -1)) == ExitCode::kUsage);
  CHECK_THAT(message(session.set_trainable("encoder.*", false)), Contains("matches no parameter"));
  session.finish().value();
  CHECK(*logger.records[0].find("d.lr.decay") == 1.0);
  CHECK(*logger.records[2].find("d.lr.decay") == 0.5);
  CHECK(*logger.records[3].find("d.lr.decay") == 0.25);
  CHECK(*logger.records[3].find("d.lr.no_decay") == 0.5);
  CHECK(*logger.records[0].find("g.lr.no_decay") == Approx(0.25));
  CHECK(*logger.records[0].find("g.lr.decay") == Approx(5e-3));
}

TEST_CASE("A group thaws at its step, also after a resume across it", "[train][trainer][resume]") {
  const TempDir dir;
  const auto run = [&](const std::string& name, int64_t steps, bool resumes, int64_t replicas = 1) {
    torch::manual_seed(3);
    const DeviceReplicatorOptions place{.device = at::kCPU, .cpu_replicas = replicas, .share_weights = false};
    auto devices = DeviceReplicator::create([] { return TinyNet(0.0); }, place).value();
    TrainerOptions options{.max_steps = steps, .save_every = 100, .output_dir = dir / name};
    if (resumes) options.resume = "latest";
    auto trainer = Trainer::create(*devices, in_groups(*devices, /*from=*/4), options).value();
    const auto loader = tiny_loader(40, 4);
    trainer.fit(*loader, tiny_loss).value();
    return copies_of(*devices);
  };
  const NamedTensors whole = run("whole", 7, false), four = run("four", 4, false), two = run("stopped", 2, false);
  CHECK(four[0].second.equal(two[0].second));  // hidden.weight
  CHECK_FALSE(whole[0].second.equal(four[0].second));
  CHECK(same_bits(run("stopped", 7, true), whole));
  CHECK(same_bits(run("four", 7, true), whole));
  const NamedTensors of_two = run("replicas", 7, false, 2);
  for (size_t i = 0; i < whole.size(); ++i) CHECK(at::allclose(of_two[i].second, whole[i].second, 1e-4, 1e-6));
}

TEST_CASE("Events read the gradients of each player before they are clipped", "[train][session][player]") {
  struct Reader final : Events {
    bool reads_gradients() const override { return true; }
    absl::Status on_gradients(int64_t step, std::string_view player, DeviceReplicator& devices) override {
      double square = 0;
      for (const auto& parameter : devices.module()->named_parameters()) {
        const bool own = parameter.key().starts_with(player == "d" ? "disc" : "gen");
        if (own) square += parameter.value().grad().square().sum().item<double>();
        others |= !own && parameter.value().grad().defined();
      }
      norms.emplace_back(std::to_string(step) + std::string(player), std::sqrt(square));
      return step == fails_at ? absl::InternalError("too large") : absl::OkStatus();
    }
    std::vector<std::pair<std::string, double>> norms;
    bool others = false;
    int64_t fails_at = -1;
  } reader;
  const auto devices = DeviceReplicator::create([] { return Gan(); }).value();
  std::vector<Player> players = gan_players();
  players[0].grad_clip = 1e-3;
  auto trainer = Trainer::create(*devices, players, gan_fake, {.log_every = 1}).value();
  RecordingLogger logger;
  Session session = trainer.begin({.events = &reader, .logger = &logger}).value();
  REQUIRE(session.step(gan_batch(0)).value());
  REQUIRE(session.step(gan_batch(1)).value());
  REQUIRE(reader.norms.size() == 4);
  CHECK(reader.norms[2].first == "2d");
  CHECK(reader.norms[3].first == "2g");
  CHECK_FALSE(reader.others);
  const NamedTensors before = copies_of(*devices);
  reader.fails_at = 3;
  CHECK_THAT(message(session.step(gan_batch(2)).status()), Contains("on_gradients") && Contains("too large"));
  CHECK(same_bits(copies_of(*devices), before));
  CHECK(*logger.records[0].find("d.grad_norm") == Approx(reader.norms[0].second));
}

TEST_CASE("Several validation sets, with gradients, and the best model of one of them", "[train][trainer]") {
  const TempDir dir;
  torch::manual_seed(3);
  auto devices = DeviceReplicator::create([] { return TinyNet(); }).value();
  const TrainerOptions options{.max_steps = 6,
                               .log_every = 0,
                               .eval_every = 2,
                               .save_every = 100,
                               .output_dir = dir / "run",
                               .monitor = "far.slope",
                               .monitor_higher_is_better = true};
  auto trainer = Trainer::create(*devices, SGD({.lr = 0.1}), options).value();
  const auto loader = tiny_loader(24, 4), near = tiny_loader(8, 8), far = tiny_loader(16, 8);
  // The slope of the loss over the inputs needs gradients.
  const auto slope = [](TinyNet& model, const Batch& batch) {
    const at::Tensor x = batch["x"].clone().requires_grad_();
    LossOutput output(at::cross_entropy_loss(model->forward(x), batch["y"]));
    output.metrics.emplace_back("slope", torch::autograd::grad({output.loss}, {x}, {}, true)[0].norm());
    return output;
  };
  FitOptions fit{.validation = near.get(), .validation_sets = {{.name = "far", .loader = far.get(), .loss = slope}}};
  fit.validation_with_grad = fit.keep_best = true;
  RecordingLogger logger;
  fit.logger = &logger;
  const TrainerResult result = trainer.fit(*loader, tiny_loss, fit).value();
  CHECK(result.evaluation.contains("loss"));
  CHECK(result.evaluation.contains("far.loss"));
  CHECK(result.best_evaluation.at("far.slope") > 0);
  const BestModel best =
      BestModel::open(dir / "run", dir / "run", {.metric = "far.slope", .higher_is_better = true}).value();
  CHECK(best.step() == result.best_step);
  CHECK(best.value() == result.best_evaluation.at("far.slope"));
  for (const at::Tensor& parameter : devices->module()->parameters()) CHECK_FALSE(parameter.grad().defined());
  fit.validation_sets.push_back({.name = "far", .loader = far.get()});
  CHECK_THAT(message(trainer.fit(*loader, tiny_loss, fit).status()), Contains("validation_sets"));
}
