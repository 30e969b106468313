// trainkit doctor as a user runs it on this machine.
#include <sys/resource.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "apps/program.h"
#include "core/device/cuda_support.h"
#include "test_util.h"
#include "trainkit/core/processors.h"
#include "trainkit/findings.h"
#include "trainkit/job_sizes.h"
#include "trainkit/probes.h"

using namespace trainkit;
using namespace trainkit::test;
using Json = nlohmann::ordered_json;

namespace {

struct Doctor {
  explicit Doctor(std::vector<std::string> flags) {
    flags.insert(flags.begin(), "doctor");
    Program program("trainkit", flags, dir.path().string());
    code = program.wait();
    output = program.output();
    errors = program.errors();
  }
  Json json() const { return Json::parse(output); }
  TempDir dir;
  int code;
  std::string output, errors;
};

}  // namespace

TEST_CASE("doctor reports this machine's CPU cores, memory and limits") {
  const Doctor doctor({"--quick", "--json"});
  REQUIRE(doctor.code == 0);
  const Json report = doctor.json();
  CHECK(report["processors"]["usable"]["value"] == available_cpus());
  CHECK(report["memory"]["total"]["value"] == sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE));
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  CHECK(report["limits"]["open files"]["value"] == files.rlim_cur);
  CHECK(report["versions"]["libtorch"]["value"].get<std::string>().starts_with("2."));
  CHECK_FALSE(report.contains("output disk"));  // --quick
}

TEST_CASE("doctor says how large a job fits the memory and the disk", "[doctor]") {
  tool::Findings findings;
  tool::add_job_sizes(findings, int64_t{16'000'000'000}, int64_t{3'000'000});
  const Json fits = Json::parse(findings.json())["largest job"];
  CHECK(fits["parameters"]["value"] == 1'000'000'000);
  CHECK(fits["GPT-2 tokens"]["value"] == 1'500'000);
  CHECK_THAT(findings.table(), Catch::Contains("1 billion (16 bytes of memory each)") &&
                                   Catch::Contains("1.5 million (2 bytes of disk each)"));
  tool::Findings unknown;
  tool::add_job_sizes(unknown, -1, -1);
  CHECK_FALSE(Json::parse(unknown.json()).contains("largest job"));
  const Json here = Doctor({"--quick", "--json"}).json();
  CHECK(here["largest job"]["parameters"]["value"].get<double>() ==
        Approx(here["memory"]["available"]["value"].get<double>() / 16).epsilon(0.5));
}

TEST_CASE("doctor ends with a one-line verdict", "[doctor]") {
  const std::string output = Doctor({"--quick"}).output;
  const std::string last = output.substr(output.rfind('\n', output.size() - 2) + 1);
  CHECK(last.starts_with("verdict: "));
  CHECK(Doctor({"--quick", "--json"}).json()["summary"].get<std::string>().starts_with("verdict: "));

  using tool::Verdict;
  tool::Findings report;
  report.add("memory", "total", 1, "24 GiB");
  report.add("gpu 0", "kernels", 1, "note", Verdict::kNote, "nothing to do");
  CHECK(report.verdict() == "verdict: ready for training; no problem found");
  report.add("limits", "open files", 64, "64", Verdict::kWarning, "ulimit -n 4096");
  CHECK(report.verdict() == "verdict: 1 problem (marked '!'): limits, open files: 64 -> ulimit -n 4096");
  report.add("memory", "/dev/shm", 0, "none", Verdict::kWarning);
  CHECK_THAT(report.verdict(), Catch::StartsWith("verdict: 2 problems (marked '!'), the first: limits, open files"));
}

TEST_CASE("doctor's verdict on CUDA is the library's diagnosis with its remedy") {
  const CudaDiagnosis diagnosis = diagnose_cuda(probe_cuda());
  const Json state = Doctor({"--quick", "--json"}).json()["cuda"]["state"];
  CHECK(state["value"] == cuda_state_name(diagnosis.state));
  CHECK(state["hint"] == diagnosis.remedy);
  if (diagnosis.state != CudaState::kReady) CHECK_FALSE(state["hint"].get<std::string>().empty());
}

TEST_CASE("doctor lists the architectures that kernels were compiled for") {
  const Json kernels = Doctor({"--quick", "--json"}).json()["cuda"]["kernels"];
  REQUIRE(kernels["value"].is_array());
  for (const Json& name : kernels["value"]) CHECK(kernels["text"].get<std::string>().find(name) != std::string::npos);
  if (kernels["value"].empty()) CHECK(kernels["text"] == "none: this build has no CUDA");
}

TEST_CASE("doctor reports the kernels that a GPU runs, and the remedy if there are none") {
  const auto kernels = [](int capability) {
    tool::Findings findings;
    tool::add_kernels(findings, "gpu 0", "sm_80 sm_90 compute_90", capability);
    return Json::parse(findings.json())["gpu 0"]["kernels"];
  };
  CHECK(kernels(86) == Json{{"value", {{"state", "compiled"}, {"code", "sm_80"}, {"compute_capability", "8.6"}}},
                            {"text", "sm_80 (compiled)"},
                            {"verdict", "ok"},
                            {"hint", ""}});
  CHECK(kernels(120) == Json{{"value", {{"state", "ptx"}, {"code", "compute_90"}, {"compute_capability", "12.0"}}},
                             {"text", "compute_90 (PTX, compiled on first use)"},
                             {"verdict", "note"},
                             {"hint", "TORCH_CUDA_ARCH_LIST=12.0 compiles them in the build"}});
  CHECK(kernels(70) == Json{{"value", {{"state", "none"}, {"code", ""}, {"compute_capability", "7.0"}}},
                            {"text", "none for compute capability 7.0: LibTorch's operations are used"},
                            {"verdict", "warning"},
                            {"hint", "rebuild with TORCH_CUDA_ARCH_LIST=7.0"}});
}

TEST_CASE("doctor measures disks and all-reduce, and leaves no file behind") {
  TempDir place;
  const Doctor doctor({"--output_dir", place.path().string(), "--json"});
  REQUIRE(doctor.code == 0);
  const Json report = doctor.json();
  CHECK(report["output disk"]["read"]["value"].get<double>() > 0);
  CHECK(report["output disk"]["write"]["value"].get<double>() > 0);
  const Json sums = report["all-reduce, 2 CPU ranks (gloo)"];
  REQUIRE(sums.size() == 4);
  for (const auto& [size, line] : sums.items()) CHECK(line["value"]["seconds"].get<double>() > 0);
  CHECK(sums["25.0 MiB"]["value"]["seconds"].get<double>() > sums["4.00 KiB"]["value"]["seconds"].get<double>());
  CHECK(std::filesystem::is_empty(place.path()));
}

TEST_CASE("doctor reads the files of an existing data set") {
  TempDir data;
  std::ofstream(data / "big.bin") << std::string(20 << 20, 'x');
  const Json report = Doctor({"--data_dir", data.path().string(), "--json"}).json();
  CHECK(report["data disk"]["read"]["value"].get<double>() > 0);
  CHECK_FALSE(report["data disk"].contains("write"));
  CHECK(read_text(data / "big.bin").size() == 20 << 20);
}

TEST_CASE("doctor's table marks warnings and prints their remedies below") {
  tool::Findings findings;
  findings.add("memory", "total", 1, "1 B");
  findings.add("memory", "free", 0, "0 B", tool::Verdict::kWarning, "buy some");
  findings.add("limits", "open files", 3, "3\x1b[2J", tool::Verdict::kNote);
  CHECK(findings.table() ==
        "memory\n  total       1 B\n! free        0 B\n              -> buy some\n\nlimits\n  open files  3\\x1b[2J\n");
  const Json json = Json::parse(findings.json());
  CHECK(json["warnings"] == 1);
  CHECK(json["memory"]["free"] == Json{{"value", 0}, {"text", "0 B"}, {"verdict", "warning"}, {"hint", "buy some"}});
}

TEST_CASE("all-reduce over any number of ranks in one process reports times") {
  for (const int ranks : {2, 3}) {
    const auto samples = tool::measure_gloo(ranks);
    INFO(samples.status().message());
    REQUIRE(samples.ok());
    CHECK(samples->size() == 4);
    for (const auto& sample : *samples) CHECK(sample.seconds > 0);
  }
}

TEST_CASE("doctor checks a data set with its trainer and quotes the trainer's error") {
  TempDir data;
  std::ofstream(data / "book.txt") << std::string(200'000, 'a') << "bcdefgh";
  const Doctor good({"--quick", "--json", "--app", "transformer", "--", "--input", data / "book.txt"});
  INFO(good.output);
  CHECK(good.code == 0);
  const Json found = good.json()["data set"];
  CHECK(found["verdict"]["text"] == "good");
  CHECK(found.contains("data"));
  CHECK_FALSE(std::filesystem::exists("runs/transformer/config.yaml"));

  const Doctor missing({"--quick", "--json", "--app", "transformer", "--", "--input", data / "missing"});
  CHECK(missing.code == 4);
  CHECK(missing.json()["data set"]["verdict"]["verdict"] == "warning");
  CHECK_THAT(missing.json()["data set"]["verdict"]["text"].get<std::string>(), Catch::StartsWith("error["));
}

TEST_CASE("A missing trainer is a usage error") {
  const Doctor doctor({"--quick", "--app", "transformr"});
  CHECK(doctor.code == 2);
  CHECK_THAT(doctor.errors,
             Catch::Contains("no such trainer in this program's folder or on the PATH (got 'transformr'") &&
                 Catch::Contains("did you mean --app transformer?"));
}
