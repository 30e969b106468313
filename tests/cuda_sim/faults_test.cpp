// Trainers when the simulated device fails or has no memory: one line, the right exit code, and checkpoints that a run
// resumes from with the same bits.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "apps/program.h"
#include "apps/runs.h"
#include "simulated_program.h"
#include "test_util.h"

using namespace trainkit::test;

namespace {

constexpr int kSteps = 24;

/// A small Transformer trained on the simulated device.
struct Trainings {
  Trainings() {
    std::filesystem::create_directory(dir / "text");
    std::ofstream text(dir / "text" + "/a.txt");
    for (int i = 0; i < 200; ++i) text << "line " << i * i << " of a text\n";
  }

  std::vector<std::string> flags(const std::string& run, std::vector<std::string> more) const {
    more.insert(more.begin(), {"--input",
                               dir / "text",
                               "--output_dir",
                               dir / run,
                               "--max_steps",
                               std::to_string(kSteps),
                               "--hidden_dim",
                               "16",
                               "--n_layers",
                               "1",
                               "--n_heads",
                               "2",
                               "--block_size",
                               "8",
                               "--batch_size",
                               "4",
                               "--sample_tokens",
                               "4",
                               "--grad_accum_steps",
                               "1",
                               "--dropout",
                               "0.1",
                               "--save_every",
                               "4",
                               "--log_every",
                               "1",
                               "--seed",
                               "3",
                               "--device",
                               "cuda",
                               "--precision",
                               "fp32"});
    return more;
  }

  Ended run(const std::string& name, const std::vector<std::string>& more,
            const std::vector<std::string>& settings = {}) const {
    return run_program("trainkit-transformer", flags(name, more), settings);
  }

  /// Runs two ranks; only the second one has `fault`, a setting of the device.
  Ended run_ranks(const std::string& name, const std::vector<std::string>& more,
                  const std::string& fault = "UNUSED=") const {
    std::vector<std::string> all = {"launch",
                                    "--nproc_per_node",
                                    "2",
                                    "--",
                                    "sh",
                                    "-c",
                                    "if [ $RANK = 1 ]; then export " + fault + "; fi; exec \"$@\"",
                                    "sh",
                                    TRAINKIT_BIN_DIR "/trainkit-transformer"};
    for (const std::string& flag : flags(name, more)) all.push_back(flag);
    return run_program("trainkit", all, {"CUDA_SIM_DEVICES=2"});
  }

  /// Runs without a fault and returns the device's final counts.
  nlohmann::json run_whole(const std::string& name, const std::vector<std::string>& more) const {
    const Ended whole = run(name, more, {"CUDA_SIM_REPORT=" + dir / (name + ".json")});
    INFO(whole.errors);
    REQUIRE(whole.code == 0);
    return nlohmann::json::parse(read_text(dir / (name + ".json")));
  }

  /// Checks that the losses of the complete run `name` equal those of the run `as`.
  void check_same(const std::string& name, const std::string& as) const {
    CHECK(losses(dir / name) == losses(dir / as));
    const auto weights = [&](const std::string& run) {
      return read_text((dir / run) + "/checkpoints/step-000000" + std::to_string(kSteps) + "/model.safetensors");
    };
    CHECK(!weights(name).empty());
    CHECK(weights(name) == weights(as));
  }

  TempDir dir;

 private:
  Ended run_program(const std::string& name, const std::vector<std::string>& arguments,
                    const std::vector<std::string>& settings) const {
    ProgramOptions options;
    options.environment = simulated(settings);
    Program program(name, arguments, dir.path().string(), options);
    const int code = program.wait();
    return {code, program.output(), program.errors()};
  }
};

/// Returns whether a run has finished a checkpoint; it may have been killed before it wrote "latest".
bool has_checkpoint(const std::string& run) {
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(run + "/checkpoints", none)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step-") && !name.ends_with(".tmp")) return true;
  }
  return false;
}

int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

int points(int few, int many) { return is_full() ? many : few; }

}  // namespace

TEST_CASE("A device failure ends a run with one line, and the resumed run has the bits of an uninterrupted run",
          "[cuda_sim][device_failure]") {
  const Trainings trainings;
  for (const std::string graph : {"off", "auto"}) {
    const std::vector<std::string> flags = {"--cuda_graph", graph};
    const std::string whole = "whole_" + graph;
    const auto launches = trainings.run_whole(whole, flags)["launches"].get<int>();
    const int count = points(3, 30);
    for (int i = 0; i < count; ++i) {
      const int fault = launches * (2 * i + 1) / (2 * count);
      const std::string name = graph + std::to_string(fault);
      const Ended failed = trainings.run(name, flags, {"CUDA_SIM_FAIL_LAUNCH=" + std::to_string(fault)});
      INFO("launch " << fault << " of " << launches << ", --cuda_graph " << graph << "\n" << failed.errors);
      CHECK(failed.code == 11);
      const bool has_records = std::filesystem::exists((trainings.dir / name) + "/metrics.jsonl");
      const std::string device = has_records ? "cuda:0" : "CUDA";  // before the first step no device is known
      CHECK_THAT(failed.errors, Catch::StartsWith("trainkit: error[device.failed] " + device +
                                                  ": an illegal memory access was encountered"));
      CHECK(count_of(failed.errors, "error[") == 1);
      CHECK(count_of(failed.errors, "\n") == 2);  // and a hint
      const std::string record = read_text((trainings.dir / name) + "/error.json");
      if (has_records && !losses(trainings.dir / name).empty()) {
        CHECK_THAT(failed.errors, Catch::Contains("noticed at step "));
        CHECK(nlohmann::json::parse(record)["exit_code"] == 11);
      }
      std::vector<std::string> again = flags;
      if (has_checkpoint(trainings.dir / name)) {
        again.insert(again.end(), {"--resume", "latest"});
      }
      const Ended resumed = trainings.run(name, again);
      INFO(resumed.errors);
      REQUIRE(resumed.code == 0);
      trainings.check_same(name, whole);
    }
  }
}

TEST_CASE("A device failure on one of two ranks ends both, and the resumed run has the bits of an uninterrupted run",
          "[cuda_sim][device_failure]") {
  const Trainings trainings;
  const std::string fault = "CUDA_SIM_FAIL_LAUNCH=", report = trainings.dir / "whole.json";
  REQUIRE(trainings.run_ranks("whole", {}, "CUDA_SIM_REPORT=" + report).code == 0);
  const auto launches = nlohmann::json::parse(read_text(report))["launches"].get<int>();  // of the second rank
  const int count = points(2, 12);
  for (int i = 0; i < count; ++i) {
    const std::string launch = std::to_string(launches * (2 * i + 1) / (2 * count)), name = "failed" + launch;
    const Ended failed = trainings.run_ranks(name, {}, fault + launch);
    INFO("launch " << launch << "\n" << failed.output << failed.errors);
    CHECK(failed.code == 11);
    CHECK_THAT(failed.errors, Catch::Contains("error[device.failed] cuda:1: an illegal memory access was encountered"));
    CHECK(count_of(failed.errors, "error[dist.peer] rank 1 ") <= 1);  // where rank 0 waits for it
    CHECK(count_of(failed.errors, "error[") <= 4);  // rank 1, rank 0, which quotes it, and the launcher
    std::vector<std::string> again;
    if (has_checkpoint(trainings.dir / name)) again = {"--resume", "latest"};
    const Ended resumed = trainings.run_ranks(name, again);
    INFO(resumed.errors);
    REQUIRE(resumed.code == 0);
    trainings.check_same(name, "whole");
  }
}

TEST_CASE("A run whose device is out of memory ends with exit code 7 and a hint, or has the same bits",
          "[cuda_sim][device_memory]") {
  const Trainings trainings;
  for (const std::string graph : {"off", "auto"}) {
    const std::vector<std::string> flags = {"--cuda_graph", graph};
    const std::string whole = "whole_" + graph;
    const auto allocations = trainings.run_whole(whole, flags)["mallocs"].get<int>();
    REQUIRE(allocations > 2);
    int ended = 0;
    for (int fault = 1; fault <= allocations; ++fault) {
      const std::string name = graph + std::to_string(fault);
      const Ended run = trainings.run(name, flags, {"CUDA_SIM_FAIL_MALLOC=" + std::to_string(fault) + ":1000000"});
      INFO("from allocation " << fault << " of " << allocations << "\n" << run.output << run.errors);
      if (run.code == 0) {
        trainings.check_same(name, whole);
        continue;
      }
      CHECK(run.code == 7);
      CHECK(count_of(run.errors, "error[memory.exhausted]") == 1);
      CHECK(count_of(run.errors, "\n") == 2);
      if (std::filesystem::exists((trainings.dir / name) + "/config.yaml")) {
        const size_t help = run.output.find("What may help"), memory = run.output.rfind("GPU memory: cuda:0 ", help);
        REQUIRE(help != std::string::npos);
        REQUIRE(memory != std::string::npos);
        CHECK(run.output.find("total\nmemory ", memory) < help);
        ++ended;
      }
    }
    CHECK(ended > 0);
  }
}
