// Runs resumed on another kind or number of devices, and runs on a device that are killed.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "runs_on_device.h"

using namespace trainkit::test;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

using Flags = std::vector<std::string>;

/// The placement of a run on a machine with three GPUs.
Setting on(int64_t gpus, int64_t ranks, const Flags& more, const std::string& precision = "fp32") {
  Setting setting{.flags = {"--device", gpus > 0 ? "cuda" : "cpu", "--precision", precision},
                  .device = {"CUDA_SIM_DEVICES=3"},
                  .devices = std::max(gpus, ranks),
                  .ranks = ranks,
                  .is_simulated = gpus > 0};
  if (gpus > 1 && ranks == 1) {
    setting.flags.insert(setting.flags.end(), {"--use_multi_gpu", "--gpu_ids"});
    for (int64_t i = 0; i < gpus; ++i) setting.flags.push_back(std::to_string(i));
  } else {
    setting.flags.push_back("--no-use_multi_gpu");  // also of the run to continue
  }
  setting.flags.insert(setting.flags.end(), more.begin(), more.end());
  return setting;
}

/// Kills a run; of several ranks only the first, and the launcher stops the others.
void kill_now(Program& program, const Setting& setting) {
  if (setting.ranks == 1) return program.kill(SIGKILL);
  const std::string pid = std::to_string(program.pid());
  pid_t first_rank = 0;
  std::ifstream("/proc/" + pid + "/task/" + pid + "/children") >> first_rank;
  REQUIRE(first_rank > 0);
  ::kill(first_rank, SIGKILL);
}

std::string checkpoint_of(int64_t step) {
  const std::string digits = std::to_string(step);
  return std::string(8 - digits.size(), '0') + digits;
}

/// Runs until a checkpoint of half of the steps, kills the run, and resumes it to its end.
void run_killed(const Runs& runs, Setting setting) {
  Setting again = setting;
  again.flags.insert(again.flags.end(), {"--resume", "latest"});
  setting.device.push_back("CUDA_SIM_DELAY_US=300");
  const auto program = runs.start("killed", setting);
  const std::string half = runs.dir / ("killed/checkpoints/step-" + checkpoint_of(runs.trainer.steps / 2));
  while (!fs::exists(half) && !program->poll()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  kill_now(*program, setting);
  REQUIRE(program->wait() != 0);
  const auto resumed = runs.start("killed", again);
  runs.end_well("killed", *resumed);
}

/// Runs that resume from checkpoints of step 10, and the difference of their losses to those of one run on the CPU.
struct Elsewhere {
  explicit Elsewhere(const Trainer& trainer) : runs(trainer) {
    expected = runs.run("cpu", on(0, 1, saves));
    expected.erase(expected.begin(), expected.begin() + 10);
  }

  void run(const std::string& name, int64_t gpus, int64_t ranks, Flags more = {}) {
    more.insert(more.end(), saves.begin(), saves.end());
    runs.run(name, on(gpus, ranks, more));
  }

  void resume(const std::string& from, int64_t gpus, int64_t ranks, const std::string& said, Flags more = {}) {
    const std::string checkpoint = runs.dir / (from + "/checkpoints/step-00000010");
    const std::string name = "resumed_" + std::to_string(++resumed);
    INFO(from << " on " << gpus << " GPUs, " << ranks << " ranks " << (more.empty() ? "" : more.back()));
    more.insert(more.end(), {"--resume", checkpoint});
    check_close(runs.run(name, on(gpus, ranks, more), 10), expected);
    if (said.empty()) CHECK_THAT(runs.printed, !Contains("random numbers"));
    CHECK_THAT(runs.printed, Contains(said));
  }

  const Flags saves = {"--save_every", "10", "--keep_last", "0"};
  Runs runs;
  std::vector<Loss> expected;
  int resumed = 0;
};

/// `trainer` with few steps, without evaluations, and with saves at the test's steps.
Trainer short_one(Trainer trainer, int64_t steps = 20) {
  trainer.steps = steps;
  trainer.flags.insert(trainer.flags.end(), {"--eval_every", "0"});
  std::erase_if(trainer.flags, [](const std::string& flag) { return flag == "--save_every" || flag == "1000"; });
  return trainer;
}

/// Runs that are killed and resumed have the bytes of a whole run.
void check_killed(const Trainer& trainer, const std::vector<Setting>& settings) {
  for (const Setting& setting : settings) {
    INFO(trainer.name << ", " << setting.devices << " GPUs, " << setting.ranks << " ranks, last flag "
                      << setting.flags.back());
    const Runs runs(trainer);
    runs.run("whole", setting);
    run_killed(runs, setting);
    const std::string last = checkpoint_of(trainer.steps), expected = checkpoint_bytes(runs.dir / "whole", last);
    CHECK(expected.size() > 1000);
    CHECK((checkpoint_bytes(runs.dir / "killed", last) == expected));
  }
}

const Flags kSaves = {"--save_every", "5"};

Setting eagerly(int64_t gpus, int64_t ranks) {
  Setting setting = on(gpus, ranks, kSaves);
  setting.flags.insert(setting.flags.end(), {"--cuda_graph", "off"});
  return setting;
}

}  // namespace

TEST_CASE("A checkpoint of the CPU resumes on a GPU and back, with the losses of one run on the CPU",
          "[cuda_sim][resume_elsewhere]") {
  Elsewhere test(short_one(transformer()));
  test.run("gpu", 1, 1);
  test.resume("cpu", 1, 1, "written on 1 x cpu, and the run continues on 1 x cuda: random numbers");
  test.resume("gpu", 0, 1, "written on 1 x cuda, and the run continues on 1 x cpu: random numbers");
  test.resume("gpu", 1, 1, "");
}

TEST_CASE("A checkpoint resumes with fewer and with more GPUs, in one process and in ranks",
          "[cuda_sim][resume_fewer]") {
  Elsewhere test(short_one(transformer()));
  test.run("three", 3, 1);
  test.run("ranks", 2, 2);
  test.resume("three", 1, 1, "written on 3 x cuda, and the run continues on 1 x cuda");
  test.resume("ranks", 1, 1, "written on 2 x cuda, and the run continues on 1 x cuda");
  test.resume("cpu", 2, 2, "written on 1 x cpu, and the run continues on 2 x cuda");
  if (!is_full()) return;
  test.resume("three", 2, 2, "written on 3 x cuda, and the run continues on 2 x cuda");
  test.resume("ranks", 0, 2, "written on 2 x cuda, and the run continues on 2 x cpu");
  test.resume("cpu", 3, 1, "written on 1 x cpu, and the run continues on 3 x cuda");
}

TEST_CASE("A checkpoint of GPUs that divide the training state in one process resumes on other devices, and back",
          "[cuda_sim][resume_fewer]") {
  Trainer trainer = short_one(transformer());
  trainer.flags.insert(trainer.flags.end(), {"--ema", "0.9", "--grad_clip", "0"});
  Elsewhere test(trainer);
  const Flags none = {"--shard", "none"}, optimizer = {"--shard", "optimizer"}, gradients = {"--shard", "gradients"};
  test.run("three", 3, 1, optimizer);
  test.run("whole", 3, 1, none);
  for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
    const auto bytes_of = [&](const std::string& run) {
      return read_text(test.runs.dir / (run + "/checkpoints/step-00000010/" + file));
    };
    CHECK(bytes_of("three").size() > 10'000);
    CHECK((bytes_of("three") == bytes_of("whole")));
  }
  test.run("ranks", 2, 2, gradients);
  test.resume("three", 1, 1, "written on 3 x cuda, and the run continues on 1 x cuda", none);
  test.resume("three", 2, 2, "written on 3 x cuda, and the run continues on 2 x cuda", gradients);
  test.resume("ranks", 3, 1, "written on 2 x cuda, and the run continues on 3 x cuda", optimizer);
  test.resume("cpu", 2, 1, "written on 1 x cpu, and the run continues on 2 x cuda", gradients);
  if (!is_full()) return;
  test.run("two", 2, 1, gradients);
  test.resume("two", 3, 1, "written on 2 x cuda, and the run continues on 3 x cuda", optimizer);
  test.resume("two", 3, 1, "written on 2 x cuda, and the run continues on 3 x cuda", none);
  test.resume("two", 0, 2, "written on 2 x cuda, and the run continues on 2 x cpu", optimizer);
  test.resume("three", 0, 1, "written on 3 x cuda, and the run continues on 1 x cpu", none);
}

TEST_CASE("Checkpoints of the other trainers resume on the other kind of device", "[cuda_sim][resume_elsewhere]") {
  if (!is_full()) return;
  Elsewhere test(short_one(GENERATE(hsi(), gpt2rec(), emotion())));
  test.run("gpu", 1, 1);
  test.resume("cpu", 1, 1, "random numbers");
  test.resume("gpu", 0, 1, "random numbers");
}

TEST_CASE("A checkpoint of a float32 run resumes in float16 with a new loss scale", "[cuda_sim][resume_elsewhere]") {
  const Runs runs(short_one(transformer()));
  runs.run("cpu", on(0, 1, {"--save_every", "10", "--keep_last", "0"}));
  const std::string checkpoint = runs.dir / "cpu/checkpoints/step-00000010";
  runs.run("half", on(1, 1, {"--resume", checkpoint}, "fp16"), 10);
  CHECK_THAT(runs.printed, Contains("the checkpoint has no loss scale, as its run was not in fp16"));
}

TEST_CASE("A run that is killed on CUDA devices and resumed ends with the bytes of an uninterrupted run",
          "[cuda_sim][resume]") {
  Trainer trainer = short_one(transformer(), 20);
  trainer.flags.insert(trainer.flags.end(), {"--dropout", "0.1"});
  std::vector<Setting> settings = {on(1, 1, kSaves), eagerly(3, 1), on(2, 2, kSaves),
                                   on(3, 1, {"--save_every", "5", "--ema", "0.9", "--shard", "optimizer"})};
  if (is_full()) settings.insert(settings.end(), {eagerly(1, 1), on(3, 1, kSaves), eagerly(2, 2)});
  check_killed(trainer, settings);
}

TEST_CASE("A run of trainkit-hsi that is killed and resumed ends with the same bytes", "[cuda_sim][resume_others]") {
  std::vector<Setting> settings = {on(2, 2, kSaves)};
  if (is_full()) settings.insert(settings.end(), {on(1, 1, kSaves), eagerly(1, 1), eagerly(3, 1)});
  check_killed(short_one(hsi()), settings);
}

TEST_CASE("A run of trainkit-gpt2rec that is killed and resumed ends with the same bytes",
          "[cuda_sim][resume_others]") {
  std::vector<Setting> settings = {on(1, 1, kSaves)};
  if (is_full()) settings.insert(settings.end(), {eagerly(1, 1), eagerly(3, 1), on(2, 2, kSaves)});
  check_killed(short_one(gpt2rec()), settings);
}

TEST_CASE("A run of trainkit-emotion that is killed and resumed ends with the same bytes",
          "[cuda_sim][resume_others]") {
  if (is_full()) return check_killed(short_one(emotion()), {on(1, 1, kSaves), eagerly(3, 1), on(2, 2, kSaves)});
  // Three eager steps, the captured one and two replays, before the kill and after it.
  check_killed(short_one(emotion_of_sound(), 12), {on(1, 1, {"--save_every", "6"})});
}
