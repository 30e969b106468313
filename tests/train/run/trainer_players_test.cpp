// Runs of several players: records, checkpoints, resume.
#include "test_util.h"
#include "train/gan.h"
#include "train/trainer_run.h"
#include "trainkit/core/error.h"
#include "trainkit/data/queue_source.h"
#include "trainkit/train/checkpoint.h"

using namespace trainkit;
using namespace trainkit::test;
using Catch::Contains;

namespace {

/// Players with all that a checkpoint keeps of them: clipping, a schedule, averages, an `every`.
std::vector<Player> full_players() {
  std::vector<Player> players = gan_players();
  players[0].schedule = cosine_annealing_lr(20);
  players[0].grad_clip = 1;
  players[1].ema_decay = 0.9;
  players[1].every = 2;
  return players;
}

struct GanRun {
  TrainerResult result;
  NamedTensors weights;
  std::vector<LogRecord> records;
};

absl::StatusOr<GanRun> run_gan(const TrainerOptions& options, const std::vector<Player>& players = full_players()) {
  torch::manual_seed(4);
  auto devices = DeviceReplicator::create([] { return Gan(0.1); }).value();
  const auto loader = Prefetcher::create(gan_rows(40), RandomSampler(40, {.seed = 1}), {.batch_size = 8}).value();
  auto trainer = Trainer::create(*devices, players, gan_fake, options);
  if (!trainer.ok()) return trainer.status();
  RecordingLogger logger;
  auto result = trainer->fit(*loader, {.logger = &logger});
  if (!result.ok()) return result.status();
  GanRun run{*result, {}, logger.records};
  for (const auto& [name, tensor] : named_tensors(*devices->module())) run.weights.emplace_back(name, tensor.clone());
  return run;
}

TrainerOptions gan_options(int64_t steps, const std::string& folder) {
  return {.max_steps = steps, .log_every = 1, .save_every = 4, .output_dir = folder};
}

}  // namespace

TEST_CASE("Records of players", "[train][trainer][player]") {
  const TempDir dir;
  const GanRun run = run_gan(gan_options(4, dir / "run")).value();
  REQUIRE(run.records.size() == 4);
  const LogRecord &first = run.records[0], &second = run.records[1];
  CHECK(*first.find("loss") == *first.find("d.loss"));
  CHECK(*first.find("d.grad_norm") > 0);
  CHECK_FALSE(first.find("g.loss"));  // every second step
  CHECK(std::isfinite(*second.find("g.loss")));
  CHECK(*first.find("d.lr.decay") == Approx(1e-2));
  CHECK(*second.find("d.lr.decay") < 1e-2);
  CHECK(*second.find("g.lr.no_decay") == Approx(5e-3));
  CHECK(second.lr.at(0) == *second.find("d.lr.decay"));
}

TEST_CASE("A run of players stopped at any step and resumed has the bits of an uninterrupted run",
          "[train][trainer][player][resume]") {
  const TempDir dir;
  const GanRun whole = run_gan(gan_options(11, dir / "whole")).value();
  for (const int64_t stop : {4, 7}) {
    const std::string folder = dir / ("stopped" + std::to_string(stop));
    REQUIRE(run_gan(gan_options(stop, folder)).ok());
    TrainerOptions options = gan_options(11, folder);
    options.resume = "latest";
    const GanRun resumed = run_gan(options).value();
    CHECK(resumed.result.steps == 11);
    CHECK(same_bits(resumed.weights, whole.weights));
    const LogRecord &last = resumed.records.back(), &same = whole.records.back();
    CHECK(*last.find("d.loss") == *same.find("d.loss"));
    CHECK(*last.find("d.lr.decay") == *same.find("d.lr.decay"));
  }
}

TEST_CASE("A checkpoint of players is refused by a run with others, in one line", "[train][trainer][player][resume]") {
  const TempDir dir;
  REQUIRE(run_gan(gan_options(4, dir / "run")).ok());
  TrainerOptions options = gan_options(8, dir / "run");
  options.resume = "latest";
  std::vector<Player> renamed = full_players();
  renamed[1].name = "generator";
  const auto refused = run_gan(options, renamed).status();
  CHECK(exit_code(refused) == ExitCode::kWeights);
  CHECK_THAT(std::string(refused.message()), Contains("belongs to no player of this run"));
}

TEST_CASE("A Trainer of players fits twice, and steps in a session", "[train][trainer][player]") {
  torch::manual_seed(4);
  auto devices = DeviceReplicator::create([] { return Gan(); }).value();
  auto trainer = Trainer::create(*devices, full_players(), gan_fake, {.max_steps = 3}).value();
  const auto loader = Prefetcher::create(gan_rows(40), RandomSampler(40, {.seed = 1}), {.batch_size = 8}).value();
  CHECK(trainer.fit(*loader).value().steps == 3);
  CHECK(trainer.fit(*loader).value().steps == 6);
  Session session = trainer.begin().value();
  CHECK(session.step(gan_batch(0)).value());
  CHECK(session.finish().value().steps == 7);
}

TEST_CASE("What a Trainer of players does not take is refused in one line", "[train][trainer][player]") {
  const auto devices = DeviceReplicator::create([] { return Gan(); }).value();
  const auto problem = [&](const TrainerOptions& options) {
    return std::string(Trainer::create(*devices, gan_players(), gan_fake, options).status().message());
  };
  CHECK_THAT(problem({.grad_clip = 1}), Contains("set Player::grad_clip"));
  CHECK_THAT(problem({.ema_decay = 0.5}), Contains("set Player::ema_decay"));
  CHECK_THAT(problem({.schedule = constant_lr()}), Contains("set Player::schedule"));
  auto trainer = Trainer::create(*devices, gan_players(), gan_fake, {.max_steps = 1}).value();
  const auto loader = Prefetcher::create(gan_rows(8), SequentialSampler(8), {.batch_size = 8}).value();
  const auto message = [](const auto& result) { return std::string(result.status().message()); };
  CHECK_THAT(message(trainer.fit(*loader, loss_of_g)), Contains("players have their losses"));
  CHECK_THAT(message(trainer.fit(*loader, {.validation = loader.get()})), Contains("validation"));
}
