// Programs on simulated devices: their copies, their logged GPU values, and their choice of device.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>

#include "runs_on_device.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

const std::vector<std::string> kThreeGpus = {
    "--device", "cuda", "--precision", "fp32", "--eval_every", "0", "--use_multi_gpu", "--gpu_ids", "0", "1", "2"};

/// The device's counts in a run with three GPUs without evaluations.
nlohmann::json counts(const Runs& runs, const std::string& name, const std::vector<std::string>& more) {
  const std::string report = runs.dir / (name + ".json");
  Setting setting{.flags = kThreeGpus,
                  .device = {"CUDA_SIM_DEVICES=3", "CUDA_SIM_NUMBERS=0", "CUDA_SIM_REPORT=" + report},
                  .devices = 3};
  setting.flags.insert(setting.flags.end(), more.begin(), more.end());
  runs.run(name, setting);
  return nlohmann::json::parse(read_text(report));
}

}  // namespace

TEST_CASE("Class weights are copied once to each device", "[cuda_sim][class_weights]") {
  Trainer trainer = emotion();
  trainer.steps = 10;
  const Runs runs(trainer);
  const auto copies = [&](const std::string& name, const std::string& flag) {
    return counts(runs, name, {flag})["to_device"].get<int64_t>();
  };
  CHECK(copies("with", "--class_weights") - copies("without", "--no-class_weights") == 3);
}

TEST_CASE("--profile records steps that are captured and replayed as a CUDA graph", "[cuda_sim][profile]") {
  Trainer trainer = transformer();
  trainer.steps = 12;
  const Runs runs(trainer);
  runs.run("cuda", {.flags = {"--device", "cuda", "--profile", "2"}});
  const auto trace = nlohmann::json::parse(read_text(runs.dir / "cuda/profile.json"));
  int updates = 0;
  for (const auto& event : trace.at("traceEvents")) updates += event.at("name") == "update";
  CHECK(updates == 11);
}

TEST_CASE("A record has the memory of the GPUs of all replicas and ranks, as have lines at the start and evaluations",
          "[cuda_sim][gpu_records]") {
  Trainer trainer = transformer();
  trainer.steps = 10;
  const Runs runs(trainer);
  const std::vector<std::string> two = {"CUDA_SIM_DEVICES=2", "CUDA_SIM_DELAY_US=1000"};  // a run of some seconds
  const auto check_lines = [&](const std::string& first, const std::string& second) {
    const std::string use = " [0-9.]+ [KMGi]*B allocated, [0-9.]+ [KMGi]*B reserved, [0-9.]+ [KMGi]*B total";
    const std::regex line("GPU memory: " + first + use + "; " + second + use);
    INFO(runs.printed);
    CHECK(std::distance(std::sregex_iterator(runs.printed.begin(), runs.printed.end(), line), {}) == 3);
  };
  runs.run("dp", {.flags = {"--device", "cuda", "--eval_every", "5", "--use_multi_gpu", "--gpu_ids", "0", "1"},
                  .device = two,
                  .devices = 2});
  check_lines("cuda:0", "cuda:1");
  runs.run("ddp", {.flags = {"--device", "cuda", "--eval_every", "5"}, .device = two, .devices = 2, .ranks = 2});
  check_lines("rank 0", "rank 1");
  for (const char* name : {"dp", "ddp"}) {
    const auto records = read_jsonl(runs.dir / (std::string(name) + "/metrics.jsonl")).value();
    REQUIRE(records[0].gpu_memory_bytes.size() == 2);
    for (const int64_t bytes : records[0].gpu_memory_bytes) CHECK(bytes > 0);
    // Known from the monitor's first sample on.
    CHECK(std::any_of(records.begin(), records.end(), [](const auto& r) { return r.gpu_utilisation.size() == 2; }));
  }
}

TEST_CASE("A record has the memory of the GPU that trains, where NVML counts the GPUs in another order",
          "[cuda_sim][gpu_records]") {
  Trainer trainer = transformer();
  trainer.steps = 4;
  const Runs runs(trainer);
  runs.run("second", {.flags = {"--device", "cuda:1"}, .device = {"CUDA_SIM_DEVICES=2", "CUDA_SIM_PCI=c1,41"}});
  const auto records = read_jsonl(runs.dir / "second/metrics.jsonl").value();
  REQUIRE(records[0].gpu_memory_bytes.size() == 1);
  CHECK(records[0].gpu_memory_bytes[0] > 0);  // the other GPU's is 0
}

TEST_CASE("On a GPU mixed precision is on by default in every trainer", "[cuda_sim][gpu_records]") {
  const TempDir dir;
  for (const char* trainer : {"trainkit-transformer", "trainkit-hsi", "trainkit-gpt2rec", "trainkit-emotion"}) {
    ProgramOptions options;
    options.environment = simulated({});
    Program program(trainer, {"--device", "cuda", "--print_config"}, dir.path().string(), options);
    INFO(trainer << program.errors());
    REQUIRE(program.wait() == 0);
    CHECK_THAT(program.output(), Catch::Contains("mixed_precision: true"));
  }
}

TEST_CASE("The README's program trains on the GPU that is there, and says so", "[cuda_sim][readme]") {
  const TempDir dir;
  const auto run = [&](bool on_device) {
    ProgramOptions options;
    if (on_device) options.environment = simulated({});
    Program program("example_readme", {}, dir.path().string(), options);
    const int code = program.wait();
    INFO(program.errors());
    REQUIRE(code == 0);
    return program.output();
  };
  const auto loss_of = [](const std::string& text) { return std::stod(text.substr(text.rfind(' '))); };
  const std::string cpu = run(false), gpu = run(true);
  CHECK_THAT(cpu, Catch::StartsWith("390 steps in 5 epochs on cpu, loss "));
  CHECK_THAT(gpu, Catch::StartsWith("390 steps in 5 epochs on cuda:0, loss "));
  for (const std::string& text : {cpu, gpu}) CHECK(loss_of(text) < 0.5);  // other random weights on a GPU
}
