// The commands of every trainer, with one that the tool does not know: examples/own_trainer.
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "apps/runs.h"
#include "logging/environment_variable.h"
#include "test_util.h"

using namespace trainkit::test;
using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

namespace {

using Words = std::vector<std::string>;

/// Demo data of the trainer, and the trainer in a folder of its own.
struct OwnPlace {
  OwnPlace() {
    REQUIRE(run("own_trainer", {"--make_demo_data", dir / "data"}).code == 0);
    fs::create_directories(dir / "mine");
    fs::copy_file(std::string(TRAINKIT_BIN_DIR) + "/own_trainer", dir / "mine/my_trainer");
  }
  Ended run(const std::string& program, const Words& words) const {
    return run_to_end(program, words, dir.path().string());
  }
  TempDir dir;
};

/// Writes a program that leaves a file next to it and prints its arguments. A trainer has the mark of run_app().
void write_program(const std::string& path, bool is_trainer = true) {
  std::ofstream(path) << "#!/bin/sh\n: > \"$0.started\"\necho \"started with $*\"\n"
                      << (is_trainer ? "# trainkit trainer: run_app\n" : "");
  fs::permissions(path, fs::perms::owner_all);
}

void write_run(const std::string& run, const std::string& program) {
  fs::create_directories(run);
  std::ofstream(run + "/run.json") << Json{{"program", program}, {"sessions", Json::array()}};
}

}  // namespace

TEST_CASE("plan and benchmark come with a user's own trainer", "[apps][plan][benchmark]") {
  const OwnPlace place;
  const Ended help = place.run("own_trainer", {"--help"});
  CHECK_THAT(help.output, Catch::Contains("\n  plan ") && Catch::Contains("\n  benchmark "));
  const Words flags = {"--data_dir", place.dir / "data", "--hidden", "32", "--gpu", "rtx4070", "--devices", "3"};
  Words words = flags;
  words.insert(words.begin(), "plan");
  const Ended table = place.run("own_trainer", words);
  INFO(table.output << table.errors);
  REQUIRE(table.code == 0);
  for (const char* text : {"rows per device x 3 devices x 1 accumulated", "optimizer", "a device has       12.0 GiB",
                           "predicted epoch on 3 x rtx4070", "bound by"}) {
    CHECK_THAT(table.output, Catch::Contains(text));
  }
  CHECK_FALSE(fs::exists(place.dir / "runs"));
  words.emplace_back("--json");
  const Json plan = Json::parse(place.run("own_trainer", words).output);
  CHECK(plan["app"] == "own_trainer");
  CHECK(plan["devices"] == 3);
  CHECK(plan["rows"].get<double>() == Approx(0.8 * 4096).margin(1));
  // (8 + 1) x 32 + (32 + 1) x 4 weights, and as many gradients and two states of Adam.
  CHECK(plan["peak_bytes"]["weights"].get<int64_t>() >= 4 * (9 * 32 + 33 * 4));
  CHECK(plan["epoch"]["gpu"] == "rtx4070");

  const Ended measured =
      place.run("own_trainer", {"benchmark", "--data_dir", place.dir / "data", "--device", "cpu", "--seconds", "0.05"});
  INFO(measured.output << measured.errors);
  REQUIRE(measured.code == 0);
  for (const char* text : {"loader alone ", "step alone ", "both ", "rows/s", "verdict: "}) {
    CHECK_THAT(measured.output, Catch::Contains(text));
  }
  CHECK_FALSE(fs::exists(place.dir / "runs"));
  const Ended ranks =
      place.run("trainkit", {"launch", "--nproc_per_node", "2", "--", TRAINKIT_BIN_DIR "/own_trainer", "benchmark",
                             "--data_dir", place.dir / "data", "--device", "cpu", "--seconds", "0.05", "--json"});
  INFO(ranks.output << ranks.errors);
  REQUIRE(ranks.code == 0);
  CHECK_THAT(ranks.output, Catch::Contains("\"replicas\": 2") && !Catch::Contains("[rank 1]"));
}

TEST_CASE("benchmark of own_trainer prints JSON, and both commands check their flags", "[apps][benchmark]") {
  const OwnPlace place;
  const Ended ended = place.run("own_trainer", {"benchmark", "--data_dir", place.dir / "data", "--device", "cpu",
                                                "--parallel", "2", "--seconds", "0.05", "--json"});
  INFO(ended.output << ended.errors);
  REQUIRE(ended.code == 0);
  const Json json = Json::parse(ended.output);
  CHECK(json["replicas"] == 2);
  const auto rows = json["epoch_rows"].get<double>();
  CHECK(rows == Approx(0.8 * 4096).margin(1));
  for (const char* part : {"loader", "step", "both"}) {
    CHECK(json[part]["rows_per_second"].get<double>() > 0);
    CHECK(json[part]["epoch_seconds"].get<double>() == Approx(rows / json[part]["rows_per_second"].get<double>()));
  }
  CHECK(json["step"]["waiting_share"] == 0);
  CHECK(json["verdict"].is_string());
  for (const char* command : {"plan", "benchmark"}) {
    const auto refused = [&](Words words, const std::string& text) {
      words.insert(words.begin(), command);
      const Ended wrong = place.run("own_trainer", words);
      INFO(command << "\n" << wrong.errors);
      CHECK(wrong.code == 2);
      CHECK_THAT(wrong.errors, Catch::Contains(text));
    };
    refused({}, "error[cli.value] --data_dir: not given");
    refused({"--data_dir", place.dir / "data", "--hiden", "3"}, "did you mean --hidden?");
    refused({"--make_demo_data", place.dir / "demo"}, "error[cli.");
    refused({"--data_dir", place.dir / "data", "--patience", "3"}, "error[cli.unused] --patience");
  }
  CHECK(place.run("own_trainer", {"export", "run", "model.onnx"})
            .errors.starts_with("trainkit: error[onnx.operator] own_trainer cannot be written as ONNX"));
}

TEST_CASE("--app takes the name or the path of a program", "[apps][plan]") {
  const OwnPlace place;
  const Words flags = {"--json", "--", "--data_dir", place.dir / "data", "--gpu_memory", "1GiB"};
  const auto plan = [&](const std::string& app) {
    Words words = {"plan", "--app", app};
    words.insert(words.end(), flags.begin(), flags.end());
    const Ended ended = place.run("trainkit", words);
    INFO(ended.errors);
    REQUIRE(ended.code == 0);
    return ended.output;
  };
  const std::string expected = plan("own_trainer");  // in the folder of trainkit
  CHECK(Json::parse(expected)["device_bytes"] == 1 << 30);
  CHECK(plan(place.dir / "mine/my_trainer") == expected);
  const std::string path = std::getenv("PATH");
  const EnvironmentVariable with_mine("PATH", (path + ":" + place.dir / "mine").c_str());
  CHECK(plan("my_trainer") == expected);
  const Ended doctor = place.run("trainkit", {"doctor", "--quick", "--json", "--app", place.dir / "mine/my_trainer",
                                              "--", "--data_dir", place.dir / "data"});
  INFO(doctor.errors);
  CHECK(doctor.code == 0);
  CHECK(Json::parse(doctor.output)["data set"]["verdict"]["text"] == "good");
  for (const char* app : {"mine/no_trainer", "no_trainer", "./mine"}) {
    const Ended none = place.run("trainkit", {"plan", "--app", app});
    CHECK(none.code == 2);
    CHECK_THAT(none.errors, Catch::Contains("error[cli.value] --app: no such "));
  }
}

TEST_CASE("export starts the program that run.json names, never a path", "[apps][export]") {
  const TempDir dir;
  fs::create_directories(dir / "programs");
  for (const char* name : {"trainer", "programs/trainer", ".trainer"}) write_program(dir / name);
  write_program(dir / "programs/other", /*is_trainer=*/false);
  const std::string path = std::getenv("PATH");
  // A relative folder, or none, would be the one where trainkit was started.
  const EnvironmentVariable paths("PATH", (path + "::." + ":" + dir / "programs").c_str());
  const auto exported = [&](const std::string& program, const Words& more = {}) {
    write_run(dir / "run", program);
    Words words = {"export", dir / "run", dir / "model.onnx"};
    words.insert(words.end(), more.begin(), more.end());
    return run_to_end("trainkit", words, dir.path().string());
  };
  for (const std::string& program :
       {dir / "trainer", std::string("./trainer"), std::string("../x"), std::string("run/../trainer"),
        std::string(".trainer"), std::string(".."), std::string(), std::string("trainkit"), std::string("no_trainer"),
        std::string("other"), std::string("sh")}) {
    const Ended refused = exported(program);
    INFO(program << "\n" << refused.errors);
    CHECK(refused.code == 2);
    CHECK_THAT(refused.errors,
               Catch::Contains("error[cli.value] " + dir / "run" + "/run.json: program: ") && Catch::Contains("--app"));
  }
  CHECK_FALSE(fs::exists(dir / "trainer.started"));
  CHECK_FALSE(fs::exists(dir / ".trainer.started"));
  CHECK_FALSE(fs::exists(dir / "programs/trainer.started"));
  CHECK_FALSE(fs::exists(dir / "programs/other.started"));
  CHECK_THAT(exported("own_trainer").errors, Catch::Contains("own_trainer cannot be written as ONNX"));
  const Ended named = exported("trainer");
  CHECK(named.code == 0);
  CHECK(named.output == "started with export " + dir / "run" + " " + dir / "model.onnx" + "\n");
  CHECK(fs::exists(dir / "programs/trainer.started"));
  CHECK_FALSE(fs::exists(dir / "trainer.started"));
  CHECK(exported("../x", {"--app", dir / "trainer", "--overwrite"}).output ==
        "started with export " + dir / "run" + " " + dir / "model.onnx" + " --overwrite\n");
  CHECK(fs::exists(dir / "trainer.started"));
}
