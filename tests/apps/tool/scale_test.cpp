// trainkit scale as a user runs it.
#include <nlohmann/json.hpp>

#include "apps/program.h"
#include "test_util.h"
#include "trainkit/distributed/scaling.h"
#include "trainkit/scale_run.h"

using namespace trainkit;
using namespace trainkit::test;
using Json = nlohmann::ordered_json;

namespace {

struct Scale {
  explicit Scale(std::vector<std::string> flags) {
    flags.insert(flags.begin(), "scale");
    Program program("trainkit", flags, dir.path().string());
    code = program.wait();
    output = program.output();
    errors = program.errors();
  }
  TempDir dir;
  int code;
  std::string output, errors;
};

const std::vector<std::string> kStep = {"--step_seconds", "0.1", "--gradient_mb", "102"};

std::vector<std::string> with_step(std::vector<std::string> more) {
  more.insert(more.begin(), kStep.begin(), kStep.end());
  return more;
}

}  // namespace

TEST_CASE("scale's JSON has the model's prediction for 1, 2, 4, ... devices and then machines") {
  const Scale scale(with_step({"--devices", "6", "--nodes", "4", "--inside", "pcie4", "--between", "5,11", "--json"}));
  INFO(scale.errors);
  REQUIRE(scale.code == 0);
  const Json json = Json::parse(scale.output);
  std::vector<int64_t> devices;
  for (const Json& line : json["predictions"]) devices.push_back(line["devices"]);
  CHECK(devices == std::vector<int64_t>{1, 2, 4, 6, 12, 24});
  const StepCost step = make_step_cost(0.1, 102'000'000, {.bucket_bytes = 26'214'400});
  const ScalingPrediction last = predict_scaling(
      step, {.devices_per_node = 6, .nodes = 4, .inside = parse_link("pcie4").value(), .between = {5e-6, 11e9}},
      {.graphs = true});
  CHECK(json["predictions"][5]["step_seconds"].get<double>() == Approx(last.step_seconds));
  CHECK(json["predictions"][5]["efficiency"].get<double>() == Approx(last.efficiency));
  CHECK(json["predictions"][0]["speedup"].get<double>() == Approx(1));
}

TEST_CASE("scale compares with measurements in the table and in the picture") {
  const std::string picture = "scaling.svg";
  TempDir place;
  const Scale scale(
      with_step({"--devices", "4", "--inside", "pcie4", "--measured", "2:0.2", "--plot", place / picture}));
  INFO(scale.errors);
  REQUIRE(scale.code == 0);
  CHECK_THAT(scale.output, Catch::Contains("measured (ms)") && Catch::Contains("200.00"));
  const std::string svg = read_text(place / picture);
  for (const char* text : {"<svg", "predicted", "linear", "measured", ">devices<", ">speed-up<", ">efficiency (%)<",
                           "Scaling of a step of 100 ms", "linear 100.00"}) {
    CHECK_THAT(svg, Catch::Contains(text));
  }
}

TEST_CASE("A fixed global batch scales worse than a growing one") {
  const auto speedup = [](const char* batch) {
    const Scale scale(with_step({"--devices", "8", "--inside", "eth10", "--batch", batch, "--json"}));
    return Json::parse(scale.output)["predictions"].back()["speedup"].get<double>();
  };
  CHECK(speedup("fixed") < speedup("grows"));
}

TEST_CASE("scale measures the link of this machine on request") {
  const Scale scale(with_step({"--devices", "2", "--inside", "measure", "--json"}));
  INFO(scale.errors);
  REQUIRE(scale.code == 0);
  CHECK(Json::parse(scale.output)["inside"]["bytes_per_second"].get<double>() > 1e6);
}

TEST_CASE("A missing input of scale is reported with an example") {
  const auto fails = [](const std::vector<std::string>& flags, const char* text) {
    const Scale scale(flags);
    INFO(text);
    CHECK(scale.code == 2);
    CHECK_THAT(scale.errors, Catch::Contains(text));
  };
  fails({}, "--step_seconds");
  fails({"--step_seconds", "0.1"}, "--gradient_mb");
  fails(with_step({"--devices", "2"}), "--inside: needed with several devices");
  fails(with_step({"--devices", "1", "--nodes", "2"}), "--between: needed with several machines");
  fails(with_step({"--inside", "nvlnk4"}), "did you mean nvlink4?");
  fails(with_step({"--inside", "pcie4", "--measured", "two:3"}), "--measured");
  fails({"--run", "/no/such/run"}, "/no/such/run");
  fails({"--step_seconds", "0.1", "--gradient_mb", "1e12"}, "error[cli.value] --gradient_mb: out of range");
  fails({"--step_seconds", "0.1", "--gradient_mb", "1e13"}, "error[cli.value] --gradient_mb: out of range");
  fails(with_step({"--bucket_mb", "1e-9"}), "error[cli.value] --bucket_mb: out of range");
  fails({"--step_seconds", "0.1", "--gradient_mb", "1e5", "--bucket_mb", "0.01"},
        "--bucket_mb: divides the gradients into more than 1000000 buckets (got '0.01', expected at least 0.1)");
}

TEST_CASE("A run on one device gives the step: rows divided by rate, and the bytes of its weights") {
  TempDir place;
  std::ofstream(place / "text.txt") << std::string(40'000, 'a') << "bcdefgh";
  Program trainer("trainkit-transformer",
                  {"--input",
                   place / "text.txt",
                   "--output_dir",
                   place / "run",
                   "--hidden_dim",
                   "16",
                   "--n_layers",
                   "1",
                   "--n_heads",
                   "2",
                   "--block_size",
                   "16",
                   "--batch_size",
                   "4",
                   "--grad_accum_steps",
                   "2",
                   "--device",
                   "cpu",
                   "--max_steps",
                   "12",
                   "--log_every",
                   "1"},
                  place.path().string());
  REQUIRE(trainer.wait() == 0);
  const auto step = tool::read_measured_step(place / "run");
  INFO(step.status().message());
  REQUIRE(step.ok());
  CHECK(step->micro_steps == 2);
  CHECK(step->seconds > 0);
  CHECK(step->seconds < 60);
  // The embeddings only: 8 characters and 16 positions, width 16, in fp32.
  CHECK(step->gradient_bytes > (8 + 16) * 16 * 4);
  const Scale scale({"--run", place / "run", "--devices", "2", "--inside", "loopback", "--json"});
  CHECK(scale.code == 0);
  CHECK(Json::parse(scale.output)["predictions"][0]["step_seconds"].get<double>() == Approx(step->seconds));
}
