#pragma once
/// Runs of the trainers on simulated devices.

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "apps/demo_data.h"
#include "apps/program.h"
#include "apps/runs.h"
#include "simulated_program.h"
#include "test_util.h"

namespace trainkit::test {

/// A trainer and a small run of it. Without dropout, whose masks differ between devices, and with steps so small that
/// Adam does not amplify the sign of a gradient close to zero.
struct Trainer {
  std::string name;
  std::vector<std::string> data_flags;  // % is replaced by the demonstration's data folder
  std::vector<std::string> flags;
  int64_t rows;  // per step
  int64_t steps = is_full() ? 60 : 10;
};

inline Trainer transformer() {
  return {"trainkit-transformer",
          {"--input", "%"},
          {"--hidden_dim", "32", "--n_layers", "2", "--n_heads", "2", "--block_size", "16", "--sample_tokens", "8",
           "--grad_accum_steps", "2"},
          6};
}
inline Trainer hsi() {
  return {"trainkit-hsi",
          {"--cube", "%/demo.mat", "--gt", "%/demo_gt.mat"},
          {"--model", "cnn2d", "--patch_size", "5", "--lr", "1e-5", "--train_ratio", "0.8", "--validation_share",
           "0.05", "--no-write_maps"},
          12};
}
inline Trainer gpt2rec() {
  return {"trainkit-gpt2rec", {"--data_dir", "%/ml-1m"}, {"--model", "bpr_mf", "--embed_dim", "8", "--lr", "0.02"}, 48};
}
/// 42 clips: every batch has enough rows for well-defined BatchNorm statistics.
inline Trainer emotion() {
  return {"trainkit-emotion",
          {"--data_dir", "%"},
          {"--model_size", "simple", "--frames", "2", "--image_size", "32", "--audio_seconds", "1", "--dropout", "0",
           "--lr", "1e-8", "--save_every", "1000"},
          6};
}
/// The same without pictures: ResNet18's 11 million weights make each step take a tenth of a second on the simulated
/// device.
inline Trainer emotion_of_sound() {
  Trainer trainer = emotion();
  trainer.flags = {"--model_size", "simple", "--modality", "audio", "--audio_seconds", "1",
                   "--dropout",    "0",      "--lr",       "1e-8",  "--save_every",    "1000"};
  return trainer;
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
    copy_demo_data(trainer.name, dir / "data");
    // Little text to evaluate at the end of a run, because that takes longer than its steps.
    for (const auto& entry : std::filesystem::directory_iterator(dir / "data")) {
      if (entry.path().extension() == ".txt") std::filesystem::resize_file(entry.path(), 10'000);
    }
  }

  std::vector<std::string> flags(const std::string& run, int64_t devices, const std::vector<std::string>& more) const {
    std::vector<std::string> all = {"--output_dir",    dir / run,
                                    "--max_steps",     std::to_string(trainer.steps),
                                    "--batch_size",    std::to_string(trainer.rows / devices),
                                    "--log_every",     "1",
                                    "--seed",          "3",
                                    "--epochs",        "1000",
                                    "--no-plan_memory"};  // see memory_plan_test.cpp
    for (std::string flag : trainer.data_flags) {
      if (const size_t at = flag.find('%'); at != std::string::npos) flag.replace(at, 1, dir / "data");
      all.push_back(flag);
    }
    all.insert(all.end(), trainer.flags.begin(), trainer.flags.end());
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  /// Starts a run; the caller waits for it.
  std::unique_ptr<Program> start(const std::string& name, const Setting& setting) const {
    std::vector<std::string> arguments = flags(name, setting.devices, setting.flags);
    std::string program = trainer.name;
    if (setting.ranks > 1) {
      arguments.insert(arguments.begin(), {"launch", "--nproc_per_node", std::to_string(setting.ranks), "--",
                                           std::string(TRAINKIT_BIN_DIR) + "/" + trainer.name});
      program = "trainkit";
    }
    ProgramOptions options;
    if (setting.is_simulated) options.environment = simulated(setting.device);
    return std::make_unique<Program>(program, arguments, dir.path().string(), options);
  }

  /// The output of a started run. It must succeed, and the device must have no findings.
  std::string end_well(const std::string& name, Program& started) const {
    const int code = started.wait();
    INFO(trainer.name << " " << name << "\n" << started.errors());
    REQUIRE(code == 0);
    return started.output() + started.errors();
  }

  /// Training losses by step, after `before` steps that the run resumed from.
  std::vector<Loss> run(const std::string& name, const Setting& setting, int64_t before = 0) const {
    const auto started = start(name, setting);
    printed = end_well(name, *started);
    std::vector<Loss> trained;
    for (const Loss& loss : losses(dir / name)) {
      if (loss.split == "train") trained.push_back(loss);
    }
    REQUIRE(trained.size() == static_cast<size_t>(trainer.steps - before));
    return trained;
  }

  Trainer trainer;
  TempDir dir;
  mutable std::string printed;  // of the last run()
};

inline void check_close(const std::vector<Loss>& found, const std::vector<Loss>& expected, double relative = 1e-4) {
  for (size_t i = 0; i < expected.size(); ++i) {
    INFO("step " << expected[i].step);
    CHECK(found[i].step == expected[i].step);
    CHECK(found[i].loss == Approx(expected[i].loss).epsilon(relative));
  }
}

}  // namespace trainkit::test
