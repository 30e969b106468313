// Buffers in the checkpoints of a run.

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "distributed/rank_threads.h"
#include "rl/replay_rows.h"
#include "rl/walkers.h"
#include "rl/written_files.h"
#include "train/trainer_run.h"
#include "trainkit/optim/sgd.h"
#include "trainkit/rl/replay_buffer.h"
#include "trainkit/rl/rollout_buffer.h"
#include "trainkit/train/checkpoint.h"
#include "trainkit/train/session.h"

using namespace trainkit;
using namespace trainkit::test;
using Catch::Contains;

namespace {

TrainerOptions steps_of(int64_t steps, const std::string& folder = {}, bool resumes = false) {
  TrainerOptions options{.max_steps = steps, .log_every = 1, .output_dir = folder};
  if (!folder.empty()) options.save_every = 1000;
  if (resumes) options.resume = "latest";
  return options;
}

struct RunOutcome {
  NamedTensors weights;
  std::vector<LogRecord> records;
  std::vector<std::string> lines;
};

NamedTensors weights_of(const DeviceReplicator& devices) {
  NamedTensors copies;
  for (const auto& [name, tensor] : named_tensors(*devices.module())) copies.emplace_back(name, tensor.clone());
  return copies;
}

at::Tensor replay_loss(torch::nn::Linear& model, const Batch& batch) {
  return (model->forward(batch["y"].unsqueeze(1) / 100) - 1).square().mean();
}

/// One thread appends rows and steps, as a robot's program does. The number of the next row is its own state.
struct Robot {
  int64_t next = 0;
  StateDict state_dict() const { return {{"next", next}}; }
  absl::Status load_state_dict(const StateDict& state) {
    TRAINKIT_ASSIGN_OR_RETURN(next, get_state<int64_t>(state, "next"));
    return absl::OkStatus();
  }
};

absl::StatusOr<RunOutcome> run_replay(const TrainerOptions& options, ProcessGroup* group = nullptr) {
  DeviceReplicatorOptions devices_options;
  if (group) devices_options.process_group = {group, [](ProcessGroup*) {}};
  const auto constant = [] {
    torch::nn::Linear net(1, 1);
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : net->parameters()) parameter.fill_(0.5);  // ranks share the default generator
    return net;
  };
  auto devices = DeviceReplicator::create(constant, devices_options).value();
  auto trainer = Trainer::create(*devices, AdamW({.lr = 1e-2}), options).value();
  const auto buffer =
      ReplayBuffer::create(replay_fields(),
                           {.capacity = 20, .batch_size = 4, .min_size = 5, .samples_per_insert = 2, .ahead = 8})
          .value();
  Robot robot;
  RecordingLogger logger;
  auto session = trainer.begin(*buffer, replay_loss, {.state = {{"robot", robot}}, .logger = &logger});
  if (!session.ok()) return session.status();
  while (true) {
    while (buffer->can_sample()) {
      const auto stepped = session->step();
      if (!stepped.ok()) return stepped.status();
      if (!*stepped) {
        const auto finished = session->finish();
        if (!finished.ok()) return finished.status();
        return RunOutcome{weights_of(*devices), logger.records, logger.lines};
      }
    }
    TRAINKIT_RETURN_IF_ERROR(append_keys(*buffer, robot.next, robot.next + 3));
    robot.next += 3;
  }
}

/// Trains on rollouts of walkers that the policy moves with random numbers.
absl::StatusOr<RunOutcome> run_rollouts(const TrainerOptions& options) {
  torch::manual_seed(4);
  auto devices = DeviceReplicator::create([] { return torch::nn::Linear(1, 1); }).value();
  auto trainer = Trainer::create(*devices, AdamW({.lr = 1e-2}), options).value();
  Walkers walkers(4);
  const auto rollout =
      RolloutBuffer::create(walker_fields(), {.horizon = 6, .simulators = 4, .batch_size = 6, .epochs = 2}).value();
  auto& net = dynamic_cast<torch::nn::LinearImpl&>(*devices->module());
  rollout->collect_with([&](RolloutBuffer& buffer) -> absl::Status {
    while (!buffer.is_full()) {
      const at::Tensor observation = walkers.observation(), action = torch::randint(0, 3, {4}, torch::kLong);
      buffer.add({observation, action}, net.forward(observation));
      buffer.add_outcome(walkers.step(action));
    }
    return buffer.finish({walkers.observation()}, [&](const Batch& rows) { return net.forward(rows["obs"]); });
  });
  RecordingLogger logger;
  const auto loss = [](torch::nn::Linear& model, const Batch& batch) {
    return (model->forward(batch["obs"]).squeeze(1) - batch["return"]).square().mean() + batch["advantage"].mean();
  };
  TRAINKIT_RETURN_IF_ERROR(trainer.fit(*rollout, loss, {.state = {{"walkers", walkers}}, .logger = &logger}).status());
  return RunOutcome{weights_of(*devices), logger.records, logger.lines};
}

/// The values of the records that do not depend on time.
std::vector<double> values_of(const std::vector<LogRecord>& records, int64_t after) {
  std::vector<double> values;
  for (const LogRecord& record : records) {
    if (record.step <= after) continue;
    for (const char* name : {"loss", "episodes", "episode_return", "episode_length"}) {
      if (const auto value = record.find(name)) values.push_back(*value);
    }
  }
  return values;
}

}  // namespace

TEST_CASE("Rows are saved as they were, although appenders overwrite them before they are written", "[rl][resume]") {
  const TempDir dir;
  const ReplayBufferOptions options = {
      .capacity = 20, .batch_size = 4, .min_size = 5, .samples_per_insert = 2, .ahead = 8};
  const auto buffer = ReplayBuffer::create(replay_fields(), options).value();
  const auto resumed = ReplayBuffer::create(replay_fields(), options).value();
  // Each batch needs two more rows.
  const auto continue_from = [](ReplayBuffer& source, int64_t key) {
    std::vector<std::vector<int64_t>> drawn;
    for (int64_t k = 0; k < 30; ++k, key += 2) {
      REQUIRE(append_keys(source, key, key + 2).ok());
      const Batch batch = *source.next().value();
      CHECK(torn_rows(batch) == 0);
      drawn.push_back(keys_of(batch));
    }
    return drawn;
  };
  REQUIRE(append_keys(*buffer, 0, 3).ok());
  continue_from(*buffer, 3);
  const StateDict state = buffer->state_dict();
  const std::vector<PendingFile> files = buffer->files();
  const auto expected = continue_from(*buffer, 63);  // 60 rows overwrite all of 28
  REQUIRE(resumed->load_state_dict(state).ok());
  REQUIRE(resumed->load_files(written(dir, files)) == absl::OkStatus());
  CHECK(resumed->rows() == 63);
  CHECK(continue_from(*resumed, 63) == expected);
  CHECK(absl::IsFailedPrecondition(resumed->load_files(written(TempDir(), buffer->files()))));
  CHECK(id_of(ReplayBuffer::create(replay_fields(), options).value()->load_files({})) == "ckpt.source");
}

TEST_CASE("A rollout is saved as it was, although the next one is recorded before it is written", "[rl][resume]") {
  const TempDir dir;
  const RolloutOptions options = {.horizon = 3, .simulators = 2, .batch_size = 3};
  const auto rollout = RolloutBuffer::create(walker_fields(), options).value();
  Walkers walkers(2, /*limit=*/100);
  rollout->collect_with([&](RolloutBuffer& buffer) {
    while (!buffer.is_full()) {
      const at::Tensor observation = walkers.observation();
      buffer.add({observation, torch::ones({2}, torch::kLong)}, value_of(observation));
      buffer.add_outcome(walkers.step(torch::ones({2}, torch::kLong)));
    }
    return buffer.finish({walkers.observation()}, [](const Batch& rows) { return value_of(rows["obs"]); });
  });
  static_cast<void>(rollout->next().value());
  const at::Tensor observations = rollout->field("obs").clone(), returns = rollout->field("return").clone();
  const StateDict state = rollout->state_dict();
  const std::vector<PendingFile> files = rollout->files();
  static_cast<void>(rollout->next().value());
  CHECK(rollout->files().empty());  // both batches are used
  CHECK_FALSE(rollout->next().value());
  static_cast<void>(rollout->next().value());
  CHECK_FALSE(at::equal(rollout->field("obs"), observations));
  const auto resumed = RolloutBuffer::create(walker_fields(), options).value();
  REQUIRE(resumed->load_state_dict(state).ok());
  REQUIRE(resumed->load_files(written(dir, files)) == absl::OkStatus());
  CHECK(at::equal(resumed->field("obs"), observations));
  CHECK(at::equal(resumed->field("return"), returns));

  RolloutOptions larger = options;
  larger.horizon = 6;
  larger.batch_size = 6;
  const auto other = RolloutBuffer::create(walker_fields(), larger).value();
  REQUIRE(other->load_state_dict(state).ok());
  CHECK(id_of(other->load_files(written(TempDir(), files))) == "ckpt.source");
}

TEST_CASE("A run that appends and steps in one thread resumes with the same bits", "[rl][resume]") {
  const TempDir dir;
  const auto whole = run_replay(steps_of(40)).value();
  const int64_t stop = GENERATE(1, 17);
  const auto first = run_replay(steps_of(stop, dir / "run")).value();
  CHECK_THAT(first.lines.front(), Contains("of the source's data"));
  CHECK_THAT(first.lines.back(), Contains("was written in"));
  const auto resumed = run_replay(steps_of(40, dir / "run", /*resumes=*/true)).value();
  CHECK(same_bits(resumed.weights, whole.weights));
  CHECK_FALSE(same_bits(first.weights, whole.weights));
  CHECK(values_of(resumed.records, stop) == values_of(whole.records, stop));
}

TEST_CASE("A run on rollouts resumes with the same bits, in a rollout and between two", "[rl][resume]") {
  const TempDir dir;
  const auto whole = run_rollouts(steps_of(40)).value();
  const int64_t stop = GENERATE(3, 16, 17);  // a rollout has 8 batches
  const auto first = run_rollouts(steps_of(stop, dir / "run")).value();
  const auto resumed = run_rollouts(steps_of(40, dir / "run", /*resumes=*/true)).value();
  CHECK(same_bits(resumed.weights, whole.weights));
  CHECK(values_of(resumed.records, stop) == values_of(whole.records, stop));
  CHECK(values_of(whole.records, 0).size() > 80);  // episodes are logged
}

TEST_CASE("Ranks save their rows into one checkpoint and resume with the same bits", "[rl][resume]") {
  const TempDir dir;
  std::vector<NamedTensors> whole(2), resumed(2);
  const auto on_both = [&](const TrainerOptions& options, std::vector<NamedTensors>* weights) {
    return on_ranks(2, [&, weights](ProcessGroup& group) -> absl::Status {
      auto outcome = run_replay(options, &group);
      if (outcome.ok() && weights) (*weights)[static_cast<size_t>(group.rank())] = outcome->weights;
      return outcome.status();
    });
  };
  for (const std::string& text : on_both(steps_of(12), &whole)) CHECK(text == "ok");
  for (const std::string& text : on_both(steps_of(5, dir / "run"), nullptr)) CHECK(text == "ok");
  const std::string checkpoint = dir / "run/checkpoints/step-00000005";
  CHECK(std::filesystem::exists(checkpoint + "/source-0000.rows"));
  CHECK(std::filesystem::exists(checkpoint + "/source-0001.rows"));
  const CheckpointPath path = {.folder = dir / "run/checkpoints", .step = 5};
  CHECK(verify_checkpoint(path) == absl::OkStatus());
  for (const std::string& text : on_both(steps_of(12, dir / "run", /*resumes=*/true), &resumed)) CHECK(text == "ok");
  for (size_t rank = 0; rank < 2; ++rank) CHECK(same_bits(resumed[rank], whole[rank]));

  TrainerOptions alone = steps_of(20, dir / "run", /*resumes=*/true);
  const absl::Status refused = run_replay(alone).status();
  CHECK(exit_code(refused) == ExitCode::kDistributed);
  CHECK_THAT(error_line(refused), Contains("got '1 ranks', expected 2"));
}

TEST_CASE("A checkpoint with rows that are damaged or missing is refused", "[rl][resume]") {
  const TempDir dir;
  REQUIRE(run_replay(steps_of(3, dir / "run")).ok());
  const std::string file = dir / "run/checkpoints/step-00000003/source-0000.rows";
  SECTION("a flipped byte") {
    std::fstream out(file, std::ios::in | std::ios::out | std::ios::binary);
    out.seekp(100);
    out.put('x');
  }
  SECTION("no file") { std::filesystem::remove(file); }
  const absl::Status refused = run_replay(steps_of(5, dir / "run", /*resumes=*/true)).status();
  CHECK(exit_code(refused) == ExitCode::kWeights);
  CHECK_THAT(error_line(refused), Contains("source-0000.rows"));
}

TEST_CASE("Old checkpoints with files are deleted like others", "[rl][resume]") {
  const TempDir dir;
  TrainerOptions options = steps_of(6, dir / "run");
  options.save_every = 1;
  options.keep_last = 2;
  REQUIRE(run_replay(options).ok());
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(dir / "run/checkpoints")) {
    if (entry.is_directory()) names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  CHECK(names == std::vector<std::string>{"step-00000005", "step-00000006"});
}
