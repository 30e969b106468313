// The four trainers on simulated devices: the CPU's losses with each strategy, and nothing for the device to report.
#include "apps/program.h"
#include "apps/runs.h"
#include "test_util.h"

using namespace trainkit::test;

namespace {

/// A trainer, and a small run of it of 60 steps.
struct Trainer {
  std::string name;
  std::vector<std::string> data_flags;  // %: the folder of the demonstration's data
  std::vector<std::string> flags;
};

// without dropout, whose numbers differ between devices
const std::vector<Trainer> kTrainers = {
    {"trainkit-transformer",
     {"--input", "%"},
     {"--hidden_dim", "32", "--n_layers", "2", "--n_heads", "2", "--block_size", "16", "--batch_size", "12",
      "--sample_tokens", "8"}},
    {"trainkit-hsi",
     {"--cube", "%/demo.mat", "--gt", "%/demo_gt.mat"},
     {"--model", "cnn2d", "--patch_size", "5", "--batch_size", "12", "--dropout", "0"}},
    {"trainkit-gpt2rec",
     {"--data_dir", "%/ml-1m"},
     {"--model", "bpr_mf", "--batch_size", "48", "--embed_dim", "8", "--lr", "0.02"}},
    {"trainkit-emotion",
     {"--data_dir", "%"},
     {"--model_size", "simple", "--frames", "2", "--image_size", "32", "--audio_seconds", "1", "--batch_size", "12",
      "--dropout", "0"}},
};

/// This process's environment with the simulated device, and `settings` of it.
std::vector<std::string> simulated(const std::vector<std::string>& settings) {
  std::vector<std::string> all = {"LD_PRELOAD=" CUDA_SIM_LIBRARY, "LD_LIBRARY_PATH=" CUDA_SIM_FOLDER};
  for (char** variable = environ; *variable; ++variable) all.emplace_back(*variable);
  all.insert(all.end(), settings.begin(), settings.end());
  return all;
}

struct Runs {
  explicit Runs(const Trainer& trainer) : trainer(trainer) {
    Program demo(trainer.name, {"--make_demo_data", dir / "data"}, dir.path().string());
    if (demo.wait() != 0) throw std::runtime_error(demo.errors());
  }

  std::vector<std::string> flags(const std::string& run, const std::vector<std::string>& more) const {
    std::vector<std::string> all = {"--output_dir", dir / run, "--max_steps", "60",  "--log_every", "1",
                                    "--seed",       "3",       "--epochs",    "1000"};
    for (std::string flag : trainer.data_flags) {
      if (const size_t at = flag.find('%'); at != std::string::npos) flag.replace(at, 1, dir / "data");
      all.push_back(flag);
    }
    all.insert(all.end(), trainer.flags.begin(), trainer.flags.end());
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  /// Losses of the training, by step. The run must end well.
  std::vector<Loss> run(const std::string& name, const std::vector<std::string>& more,
                        const std::vector<std::string>& settings = {}, bool on_device = true) const {
    ProgramOptions options;
    if (on_device) options.environment = simulated(settings);
    Program program(trainer.name, flags(name, more), dir.path().string(), options);
    const int code = program.wait();
    INFO(trainer.name << " " << name << "\n" << program.errors());
    REQUIRE(code == 0);
    std::vector<Loss> trained;
    for (const Loss& loss : losses(dir / name)) {
      if (loss.split == "train") trained.push_back(loss);
    }
    REQUIRE(trained.size() == 60);
    return trained;
  }

  Trainer trainer;
  TempDir dir;
};

void check_close(const std::vector<Loss>& found, const std::vector<Loss>& expected, double relative) {
  for (size_t i = 0; i < expected.size(); ++i) {
    INFO("step " << expected[i].step);
    CHECK(found[i].step == expected[i].step);
    CHECK(found[i].loss == Approx(expected[i].loss).epsilon(relative));
  }
}

}  // namespace

TEST_CASE("Each trainer has the CPU's losses on a CUDA device, eagerly and as a graph", "[cuda_sim][trainers]") {
  const Trainer trainer = GENERATE(from_range(kTrainers));
  const Runs runs(trainer);
  const auto expected = runs.run("cpu", {"--device", "cpu"}, {}, false);
  check_close(runs.run("eager", {"--device", "cuda", "--cuda_graph", "off"}), expected, 1e-4);
  check_close(runs.run("graph", {"--device", "cuda"}), expected, 1e-4);
}

TEST_CASE("Each trainer has the CPU's losses on three CUDA devices", "[cuda_sim][trainers]") {
  const Trainer trainer = GENERATE(from_range(kTrainers));
  const Runs runs(trainer);
  const auto expected = runs.run("cpu", {"--device", "cpu"}, {}, false);
  const std::vector<std::string> three = {"--device", "cuda", "--strategy", "dp", "--gpu_ids", "0", "1", "2"};
  check_close(runs.run("dp", three, {"CUDA_SIM_DEVICES=3", "CUDA_SIM_RANDOM_DELAY_US=300"}), expected, 1e-4);
}
