// The four trainers on simulated devices: the CPU's losses with each strategy, and nothing for the device to report.
#include "apps/runs.h"
#include "simulated_program.h"
#include "test_util.h"

using namespace trainkit::test;

namespace {

/// A trainer, and a small run of it. Without dropout, whose numbers differ between devices, and with steps so small
/// that Adam does not make a large difference of the sign of a gradient that is nearly zero.
struct Trainer {
  std::string name;
  std::vector<std::string> data_flags;  // %: the folder of the demonstration's data
  std::vector<std::string> flags;
  int64_t rows;  // of a step
  int64_t steps = 60;
};

Trainer transformer() {
  return {"trainkit-transformer",
          {"--input", "%"},
          {"--hidden_dim", "32", "--n_layers", "2", "--n_heads", "2", "--block_size", "16", "--sample_tokens", "8",
           "--grad_accum_steps", "2"},
          12};
}
Trainer hsi() {
  return {"trainkit-hsi",
          {"--cube", "%/demo.mat", "--gt", "%/demo_gt.mat"},
          {"--model", "cnn2d", "--patch_size", "5", "--dropout", "0", "--lr", "1e-5"},
          12};
}
Trainer gpt2rec() {
  return {"trainkit-gpt2rec", {"--data_dir", "%/ml-1m"}, {"--model", "bpr_mf", "--embed_dim", "8", "--lr", "0.02"}, 48};
}
Trainer emotion() {
  return {"trainkit-emotion",
          {"--data_dir", "%"},
          {"--model_size", "simple", "--frames", "2", "--image_size", "32", "--audio_seconds", "1", "--dropout", "0",
           "--lr", "1e-8", "--save_every", "1000"},
          12};
}

/// How to run a trainer.
struct Setting {
  std::vector<std::string> flags;
  std::vector<std::string> device = {};  // settings of the simulated device
  int64_t devices = 1;                   // that share the rows of a step
  int64_t ranks = 1;
  bool is_simulated = true;
};

struct Runs {
  explicit Runs(const Trainer& trainer) : trainer(trainer) {
    Program demo(trainer.name, {"--make_demo_data", dir / "data"}, dir.path().string());
    if (demo.wait() != 0) throw std::runtime_error(demo.errors());
  }

  std::vector<std::string> flags(const std::string& run, int64_t devices, const std::vector<std::string>& more) const {
    std::vector<std::string> all = {"--output_dir", dir / run,
                                    "--max_steps",  std::to_string(trainer.steps),
                                    "--batch_size", std::to_string(trainer.rows / devices),
                                    "--log_every",  "1",
                                    "--seed",       "3",
                                    "--epochs",     "1000"};
    for (std::string flag : trainer.data_flags) {
      if (const size_t at = flag.find('%'); at != std::string::npos) flag.replace(at, 1, dir / "data");
      all.push_back(flag);
    }
    all.insert(all.end(), trainer.flags.begin(), trainer.flags.end());
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  /// Losses of the training, by step. The run must end well, and the device have nothing to report.
  std::vector<Loss> run(const std::string& name, const Setting& setting) const {
    std::vector<std::string> arguments = flags(name, setting.devices, setting.flags);
    std::string program = trainer.name;
    if (setting.ranks > 1) {
      arguments.insert(arguments.begin(), {"launch", "--nproc_per_node", std::to_string(setting.ranks), "--",
                                           std::string(TRAINKIT_BIN_DIR) + "/" + trainer.name});
      program = "trainkit";
    }
    ProgramOptions options;
    if (setting.is_simulated) options.environment = simulated(setting.device);
    Program started(program, arguments, dir.path().string(), options);
    const int code = started.wait();
    INFO(trainer.name << " " << name << "\n" << started.errors());
    REQUIRE(code == 0);
    std::vector<Loss> trained;
    for (const Loss& loss : losses(dir / name)) {
      if (loss.split == "train") trained.push_back(loss);
    }
    REQUIRE(trained.size() == static_cast<size_t>(trainer.steps));
    return trained;
  }

  Trainer trainer;
  TempDir dir;
};

void check_close(const std::vector<Loss>& found, const std::vector<Loss>& expected, double relative = 1e-4) {
  for (size_t i = 0; i < expected.size(); ++i) {
    INFO("step " << expected[i].step);
    CHECK(found[i].step == expected[i].step);
    CHECK(found[i].loss == Approx(expected[i].loss).epsilon(relative));
  }
}

/// 60 steps on simulated devices have the CPU's losses, whatever shares the work.
void check_strategies(const Trainer& trainer) {
  const Runs runs(trainer);
  const Setting on_cpu{.flags = {"--device", "cpu", "--precision", "fp32"}, .is_simulated = false};
  const auto expected = runs.run("cpu", on_cpu);
  const std::vector<std::string> cuda = {"--device", "cuda", "--precision", "fp32"};
  const auto with = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), cuda.begin(), cuda.end());
    return flags;
  };
  check_close(runs.run("eager", {.flags = with({"--cuda_graph", "off"}), .device = {"CUDA_SIM_RANDOM_DELAY_US=100"}}),
              expected);
  check_close(runs.run("graph", {.flags = cuda}), expected);
  Setting cpus = on_cpu;  // class weights and statistics of BatchNorm make a difference of who has which rows
  cpus.devices = 3;
  cpus.flags.insert(cpus.flags.end(), {"--parallel", "3"});
  check_close(runs.run("dp", {.flags = with({"--use_multi_gpu", "--gpu_ids", "0", "1", "2"}),
                              .device = {"CUDA_SIM_DEVICES=3", "CUDA_SIM_RANDOM_DELAY_US=100"},
                              .devices = 3}),
              runs.run("dp_cpu", cpus));
  Setting ranks = on_cpu;
  ranks.devices = ranks.ranks = 2;
  check_close(runs.run("ddp", {.flags = cuda, .device = {"CUDA_SIM_DEVICES=2"}, .devices = 2, .ranks = 2}),
              runs.run("ddp_cpu", ranks));
}

/// float16 with a GradScaler, and bfloat16, learn as float32 does, to their precision.
void check_precisions(const Trainer& trainer) {
  const Runs runs(trainer);
  const auto expected = runs.run("fp32", {.flags = {"--device", "cuda", "--precision", "fp32"}});
  check_close(runs.run("fp16", {.flags = {"--device", "cuda", "--precision", "fp16"}}), expected, 1e-2);
  check_close(runs.run("bf16", {.flags = {"--device", "cuda", "--precision", "bf16"}, .device = {"CUDA_SIM_CC=80"}}),
              expected, 4e-2);
}

}  // namespace

TEST_CASE("trainkit-transformer has the CPU's losses on CUDA devices", "[cuda_sim][transformer]") {
  check_strategies(transformer());
}
TEST_CASE("trainkit-hsi has the CPU's losses on CUDA devices", "[cuda_sim][hsi]") { check_strategies(hsi()); }
TEST_CASE("trainkit-gpt2rec has the CPU's losses on CUDA devices", "[cuda_sim][gpt2rec]") {
  check_strategies(gpt2rec());
}
TEST_CASE("trainkit-emotion has the CPU's losses on CUDA devices", "[cuda_sim][emotion]") {
  check_strategies(emotion());
}

TEST_CASE("trainkit-transformer learns in float16 and bfloat16", "[cuda_sim][transformer]") {
  check_precisions(transformer());
}
TEST_CASE("trainkit-hsi learns in float16 and bfloat16", "[cuda_sim][hsi]") { check_precisions(hsi()); }
TEST_CASE("trainkit-gpt2rec learns in float16 and bfloat16", "[cuda_sim][gpt2rec]") { check_precisions(gpt2rec()); }
TEST_CASE("trainkit-emotion learns in float16 and bfloat16", "[cuda_sim][emotion]") { check_precisions(emotion()); }
