// trainkit doctor --verify on simulated devices: all checks pass, and each detects its fault.
#include <nlohmann/json.hpp>

#include "simulated_program.h"
#include "test_util.h"

using namespace trainkit::test;
using Catch::Contains;
using Json = nlohmann::ordered_json;

namespace {

/// `trainkit doctor --verify` in this environment.
struct Doctor {
  Doctor(std::vector<std::string> flags, std::vector<std::string> environment) {
    flags.insert(flags.begin(), {"doctor", "--quick", "--verify", "--report", "sent.json"});
    for (std::string& flag : flags) {
      if (flag == "sent.json") flag = dir / flag;
    }
    ProgramOptions options;
    options.environment = std::move(environment);
    Program program("trainkit", flags, dir.path().string(), options);
    code = program.wait();
    output = program.output();
    errors = program.errors();
    report = Json::parse(read_text(dir / "sent.json"));
  }

  /// "ok", "failed" or "skipped".
  std::string state(const std::string& section, const std::string& check) const {
    return report.at(section).at(check).at("value").at("state");
  }
  const Json& figures(const std::string& section, const std::string& check) const {
    return report.at(section).at(check).at("value").at("figures");
  }

  TempDir dir;
  int code;
  std::string output, errors;
  Json report;
};

/// All checks of one device pass.
void check_device(const Doctor& doctor, const std::string& section, size_t expected = 9) {
  const Json& checks = doctor.report.at(section);
  CHECK(checks.size() == expected);
  for (const auto& [name, check] : checks.items()) {
    INFO(section << ", " << name << ": " << check["text"]);
    CHECK(check["value"]["state"] == "ok");
  }
}

/// The check `name` of `flag` fails with this device fault, and so does the program.
void check_finds(const std::string& flag, const std::string& name, const std::string& fault,
                 const std::string& section = "verify gpu 0") {
  const std::vector<std::string> only = {"--verify_seconds", "0", "--verify_only", flag};
  const Doctor doctor(only, simulated({"CUDA_SIM_DEVICES=2", fault}));
  INFO(name << " with " << fault << "\n" << doctor.errors);
  CHECK(doctor.code == 1);
  CHECK(doctor.state(section, name) == "failed");
  CHECK_FALSE(doctor.report[section][name]["hint"].get<std::string>().empty());
  CHECK_THAT(doctor.errors, Contains(section + ", " + name + ": failed: ") && Contains("error[doctor.verify]"));
}

}  // namespace

TEST_CASE("doctor --verify passes on one GPU, and lists the skipped checks", "[verify]") {
  const Doctor doctor({"--verify_seconds", "0"}, simulated({}));
  INFO(doctor.errors);
  CHECK(doctor.code == 0);
  check_device(doctor, "verify gpu 0");
  for (const char* check : {"data parallel", "all-reduce"}) {
    CHECK(doctor.report["verify all gpus"][check]["text"] == "skipped: there is one GPU");
  }
  CHECK(doctor.figures("verify gpu 0", "CUDA graph, fp32")["graph_steps"].get<int>() > 10);
  CHECK_THAT(doctor.errors, Contains("[1/11] verify gpu 0, memory of a step: ") &&
                                Contains("[11/11] verify all gpus, all-reduce: skipped: there is one GPU"));
}

TEST_CASE("doctor --verify passes on two GPUs", "[verify]") {
  std::vector<std::string> flags = {"--verify_seconds", "0"};
  const bool full = environment("TRAINKIT_TEST_FULL") == "1";  // measuring a step's memory takes half a minute
  if (!full) {
    flags.insert(flags.end(), {"--verify_only", "layer_norm", "gelu", "cross_entropy", "patches", "graph", "copies",
                               "checkpoint", "data_parallel", "all_reduce"});
  }
  const Doctor doctor(flags, simulated({"CUDA_SIM_DEVICES=2"}));
  INFO(doctor.errors);
  CHECK(doctor.code == 0);
  for (const char* section : {"verify gpu 0", "verify gpu 1"}) check_device(doctor, section, full ? 9 : 8);
  CHECK(doctor.state("verify all gpus", "data parallel") == "ok");
  CHECK(doctor.state("verify all gpus", "all-reduce") == "ok");
  CHECK(doctor.figures("verify all gpus", "data parallel")["devices"] == 2);
}

TEST_CASE("doctor --verify passes while streams run late", "[verify]") {
  const Doctor doctor({"--verify_only", "graph", "copies", "checkpoint", "data_parallel", "all_reduce"},
                      simulated({"CUDA_SIM_DEVICES=2", "CUDA_SIM_RANDOM_DELAY_US=100"}));
  INFO(doctor.errors);
  CHECK(doctor.code == 0);
}

TEST_CASE("doctor --verify runs the CPU checks if there is no GPU", "[verify]") {
  std::vector<std::string> environment = simulated({"CUDA_VISIBLE_DEVICES="});
  std::erase_if(environment, [](const std::string& variable) { return variable.starts_with("LD_"); });
  const Doctor doctor({"--verify_only", "graph", "patches", "gelu", "copies", "checkpoint", "data_parallel"},
                      environment);
  INFO(doctor.errors);
  CHECK(doctor.code == 0);
  const Json& checks = doctor.report["verify cpu"];
  CHECK(checks["devices"]["text"].get<std::string>().starts_with("no GPU that LibTorch can use"));
  CHECK(checks["CUDA graph, fp32"]["text"] == "skipped: a CUDA graph needs a GPU");
  for (const char* check : {"patch gather", "bias + GELU", "copies under load", "checkpoint", "data parallel"}) {
    CHECK(doctor.state("verify cpu", check) == "ok");
  }
}

TEST_CASE("Checks without enough time left are skipped", "[verify]") {
  const Doctor doctor({"--verify_only", "patches", "gelu", "--verify_seconds", "1e-9"}, simulated({}));
  INFO(doctor.errors);
  CHECK(doctor.code == 0);
  CHECK(doctor.report["verify gpu 0"]["patch gather"]["text"] == "skipped: time limit of 1e-09 s reached");
}

TEST_CASE("Flags of --verify without --verify are a usage error", "[verify]") {
  TempDir dir;
  Program program("trainkit", {"doctor", "--verify_only", "graph"}, dir.path().string());
  CHECK(program.wait() == 2);
  CHECK_THAT(program.errors(), Contains("--verify_only") && Contains("has no effect without --verify"));
}

TEST_CASE("A report for the developers has devices and versions, and no user data", "[verify]") {
  const Doctor doctor({"--verify_only", "patches"}, simulated({"CUDA_SIM_CC=90"}));
  INFO(doctor.errors);
  CHECK(doctor.code == 0);
  CHECK(doctor.report["gpu 0"]["name"]["value"] == "Simulated GPU");
  CHECK(doctor.report["gpu 0"]["compute capability"]["value"] == "9.0");
  CHECK(doctor.report["gpu 0"]["kernels"]["value"]["compute_capability"] == "9.0");
  CHECK(doctor.report["versions"]["libtorch"]["value"].get<std::string>().starts_with("2."));
  CHECK(doctor.report["cuda"].contains("of the driver"));
  CHECK(doctor.report["report"].contains("date"));
  CHECK(doctor.report["verify gpu 0"].size() == 1);
  for (const char* section : {"output disk", "data disk", "gpu processes"})
    CHECK_FALSE(doctor.report.contains(section));
  CHECK_THAT(doctor.report.dump(), !Contains(doctor.dir.path().string()));
}

TEST_CASE("A GPU that runs none of our kernels is reported", "[verify]") {
  const Doctor doctor({"--verify_only", "layer_norm"}, simulated({"CUDA_SIM_CC=70"}));
  CHECK(doctor.code == 0);
  CHECK_THAT(doctor.report["verify gpu 0"]["residual + layer norm"]["text"].get<std::string>(),
             Contains("by LibTorch's operations, as this build has no kernels for this GPU"));
}

TEST_CASE("doctor --verify detects wrong kernels", "[verify]") {
  check_finds("layer_norm", "residual + layer norm", "CUDA_SIM_WRONG_KERNEL=norm_kernel:3");
  check_finds("layer_norm", "residual + layer norm", "CUDA_SIM_WRONG_KERNEL=norm_gradient_kernel:2");
  check_finds("gelu", "bias + GELU", "CUDA_SIM_WRONG_KERNEL=gelu_kernel:5");
  check_finds("cross_entropy", "cross-entropy", "CUDA_SIM_WRONG_KERNEL=logits_gradient_kernel:1");
  check_finds("patches", "patch gather", "CUDA_SIM_WRONG_KERNEL=gather_patches_kernel:4");
}

TEST_CASE("doctor --verify detects a graph replay that does nothing", "[verify]") {
  check_finds("graph", "CUDA graph, fp32", "CUDA_SIM_DROP_REPLAY=5");
}

TEST_CASE("doctor --verify detects a batch and a slice that are not copied", "[verify]") {
  check_finds("copies", "copies under load", "CUDA_SIM_DROP_COPY=40:262144");
  check_finds("copies", "copies under load", "CUDA_SIM_DROP_COPY=40:87040");
}

TEST_CASE("doctor --verify detects a tensor that is missing from a checkpoint", "[verify]") {
  check_finds("checkpoint", "checkpoint", "CUDA_SIM_DROP_COPY=5:36864");
}

TEST_CASE("doctor --verify detects rows that do not reach a replica", "[verify]") {
  check_finds("data_parallel", "data parallel", "CUDA_SIM_DROP_COPY=5:2304", "verify all gpus");
}

TEST_CASE("doctor --verify detects wrong sums over GPUs", "[verify]") {
  check_finds("all_reduce", "all-reduce", "CUDA_SIM_WRONG_KERNEL=ncclAllReduce:7", "verify all gpus");
}

TEST_CASE("doctor --verify detects a GPU with too little memory for a step", "[verify]") {
  check_finds("memory", "memory of a step", "CUDA_SIM_MEMORY_MB=200");
}

TEST_CASE("Failed checks do not hide passed ones", "[verify]") {
  const Doctor doctor({"--verify_only", "gelu", "cross_entropy", "patches"},
                      simulated({"CUDA_SIM_WRONG_KERNEL=gelu_kernel:1"}));
  CHECK(doctor.code == 1);
  CHECK(doctor.state("verify gpu 0", "bias + GELU") == "failed");
  CHECK(doctor.state("verify gpu 0", "cross-entropy") == "ok");
  CHECK(doctor.state("verify gpu 0", "patch gather") == "ok");
}
