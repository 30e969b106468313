// --help, --completion and the one-line answers of the programs, as a user runs them.
#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "apps/runs.h"
#include "logging/environment_variable.h"
#include "test_util.h"

using namespace trainkit;
using namespace trainkit::test;
using Json = nlohmann::ordered_json;

namespace {

/// A command line and flags that its --help shows.
struct Asked {
  std::string program;
  std::vector<std::string> words;
  std::vector<std::string> shown;
};

const std::vector<Asked> kAsked = {
    {"trainkit-transformer", {}, {"--input ", "--n_layers ", "--epochs ", "--batch_size ", "  evaluate "}},
    {"trainkit-hsi", {}, {"--scene ", "--model ", "--patch_size ", "--data_dir ", "  predict ", "  benchmark "}},
    {"trainkit-emotion", {}, {"--dataset ", "--model_size ", "--resume ", "  predict "}},
    {"trainkit-gpt2rec", {}, {"--model ", "--gpt2 ", "]use_cache ", "--preset NAME", "  recommend "}},
    {"trainkit-hsi", {"predict"}, {"--cube ", "--device "}},
    {"trainkit-transformer", {"evaluate"}, {"--input ", "--device "}},
    {"trainkit-hsi", {"benchmark"}, {"--gpus ", "--bands "}},
    {"trainkit-hsi", {"plan"}, {"--devices ", "--gpu NAME", "--gpu_memory SIZE", "--batch_size "}},
    {"trainkit-transformer", {"benchmark"}, {"--seconds ", "--batch_size "}},
    {"trainkit", {"plan"}, {"--app NAME", "--gpu_memory SIZE", "--link "}},
    {"trainkit", {"scale"}, {"--step_seconds ", "--inside "}},
    {"trainkit", {"doctor"}, {"--app ", "--verify"}},
    {"trainkit", {"inspect"}, {}},
    {"trainkit", {"verify-resume"}, {}}};

}  // namespace

TEST_CASE("--help of each program and command is one screen", "[apps][help]") {
  const TempDir dir;
  const EnvironmentVariable terminal("COLUMNS", "80");
  for (const Asked& asked : kAsked) {
    std::vector<std::string> words = asked.words;
    words.emplace_back("--help");
    const Ended ended = run_to_end(asked.program, words, dir.path().string());
    INFO(ended.output << ended.errors);
    REQUIRE(ended.code == 0);
    const std::vector<std::string> lines = split_lines(ended.output);
    CHECK(lines.size() <= 41);  // and an empty line
    for (const std::string& line : lines) CHECK(line.size() <= 80);
    for (const std::string& part : asked.shown) CHECK_THAT(ended.output, Catch::Contains(part));
    if (asked.words.empty()) CHECK(lines.size() >= 24);

    words.emplace_back("all");
    const Ended all = run_to_end(asked.program, words, dir.path().string());
    CHECK(all.code == 0);
    CHECK_THAT(all.output, Catch::Contains("--print_config") && Catch::Contains("Precedence:"));
    words.back() = "no_such_group";
    CHECK(run_to_end(asked.program, words, dir.path().string()).code == 2);
  }
}

TEST_CASE("--help of a command describes its own flags and omits those that it refuses", "[apps][help]") {
  const TempDir dir;
  const auto help = [&](const std::string& program, std::vector<std::string> words) {
    words.emplace_back("--help");
    return run_to_end(program, words, dir.path().string()).output;
  };
  const std::string exported = help("trainkit-hsi", {"export"});
  CHECK_THAT(exported, Catch::Contains("Replace OUT.onnx if it exists") && !Catch::Contains("earlier run"));
  for (const char* command : {"recommend", "similar"}) {
    CHECK_THAT(help("trainkit-gpt2rec", {command}),
               Catch::Contains("--device ") && !Catch::Contains("--parallel") && !Catch::Contains("use_multi_gpu"));
  }
  CHECK_THAT(help("trainkit-hsi", {}), Catch::Contains("  benchmark ") && Catch::Contains("1, 2, ... "));
}

TEST_CASE("trainkit --help lists the commands, wrapped at the width of the terminal", "[apps][help]") {
  const TempDir dir;
  for (const size_t width : {60, 80}) {
    const EnvironmentVariable terminal("COLUMNS", std::to_string(width).c_str());
    const Ended ended = run_to_end("trainkit", {"--help"}, dir.path().string());
    INFO(ended.output << ended.errors);
    REQUIRE(ended.code == 0);
    CHECK_THAT(ended.output, Catch::StartsWith("Usage: trainkit COMMAND "));
    for (const std::string& line : split_lines(ended.output)) CHECK(line.size() <= width);
    for (const char* text :
         {"\n  doctor ", "\n  verify-resume ", "--completion", "  trainkit watch runs/transformer\n"}) {
      CHECK_THAT(ended.output, Catch::Contains(text));
    }
  }
}

TEST_CASE("The scripts of --completion complete programs and commands in bash", "[apps][completion]") {
  const TempDir dir;
  const auto offered = [&](const std::string& program, const std::string& words, int at) {
    const Ended script = run_to_end(program, {"--completion", "bash"}, dir.path().string());
    INFO(script.errors);
    REQUIRE(script.code == 0);
    std::ofstream(dir / "script") << script.output << "\nCOMP_WORDS=(" << words << "); COMP_CWORD=" << at
                                  << "\n$(complete -p " << program << " | sed 's/.*-F \\([^ ]*\\) .*/\\1/')\n"
                                  << "printf '%s\\n' \"${COMPREPLY[@]}\" > " << dir / "offered"
                                  << "\n";
    REQUIRE(std::system(("bash --norc " + (dir / "script")).c_str()) == 0);
    return split_lines(read_text(dir / "offered"));
  };
  using Words = std::vector<std::string>;
  CHECK(offered("trainkit-hsi", "trainkit-hsi --model ''", 2) == Words{"mlp", "cnn2d", "cnn3d", "hybridsn", "ssrn"});
  CHECK(offered("trainkit-hsi", "trainkit-hsi pre", 1) == Words{"predict"});
  CHECK(offered("trainkit-hsi", "trainkit-hsi benchmark --gp", 2) == Words{"--gpus"});
  CHECK(offered("trainkit-hsi", "trainkit-hsi predict run --ou", 3) == Words{"--output_dir", "--out"});
  CHECK(offered("trainkit-transformer", "trainkit-transformer --preset sh", 2) == Words{"shakespeare_char_cpu"});
  CHECK(offered("trainkit-emotion", "trainkit-emotion plan --gpu rtx40", 3) == Words{"rtx4090", "rtx4080", "rtx4070"});
  CHECK(offered("trainkit-emotion", "trainkit-emotion ben", 1) == Words{"benchmark"});
  CHECK(offered("trainkit", "trainkit ver", 1) == Words{"verify-resume"});
  CHECK(offered("trainkit", "trainkit plan --gpu rtx40", 3) == Words{"rtx4090", "rtx4080", "rtx4070"});
  CHECK(offered("trainkit", "trainkit scale --algo", 2) == Words{"--algorithm"});
  CHECK(run_to_end("trainkit", {"--completion", "fish"}, dir.path().string()).code == 2);
  CHECK(run_to_end("trainkit", {"--completion"}, dir.path().string()).code == 2);
  CHECK(run_to_end("trainkit-hsi", {"--completion", "fish"}, dir.path().string()).code == 2);
}

TEST_CASE("plan --app hsi needs no data: it assumes the scene Indian Pines and says so", "[apps][plan]") {
  const TempDir dir;
  const Ended ended = run_to_end(
      "trainkit", {"plan", "--app", "hsi", "--gpu_memory", "2GiB", "--", "--batch_size", "64"}, dir.path().string());
  INFO(ended.output << ended.errors);
  REQUIRE(ended.code == 0);
  CHECK_THAT(ended.output, Catch::StartsWith("data: Indian Pines: 145 x 145 pixels, 200 bands, 16 "
                                             "classes, 10249 labelled pixels (assumed; ") &&
                               Catch::Contains("64 rows per device x 1 device") && Catch::Contains("reserved"));
  CHECK(!std::filesystem::exists(dir / "runs"));
  const Ended json = run_to_end("trainkit",
                                {"plan", "--app", "hsi", "--gpu_memory", "2GiB", "--json", "--", "--plan_data",
                                 "30x32x16x3x300", "--batch_size", "8"},
                                dir.path().string());
  INFO(json.errors);
  REQUIRE(json.code == 0);
  const Json plan = Json::parse(json.output);
  CHECK_FALSE(plan.contains("assumed_data"));
  CHECK(plan.at("rows").get<int>() == Approx(300 * 0.1 * 0.9).margin(4));  // a tenth, less its validation pixels
  for (const char* size : {"30x32x16x3", "30x32x16x3x29", "30x32x16x1x300", "30x32x16x3x961", "30x32x16x3x 300", "x"}) {
    const Ended bad = run_to_end("trainkit-hsi", {"--dry_run", "--plan_data", size}, dir.path().string());
    CHECK(bad.code == 2);
    CHECK_THAT(bad.errors, Catch::Contains("[cli.value] --plan_data"));
  }
  CHECK(run_to_end("trainkit-hsi", {"--plan_data", "30x32x16x3x300"}, dir.path().string()).code == 2);
  CHECK(
      run_to_end("trainkit-hsi", {"--dry_run", "--data_dir", "x", "--plan_data", "30x32x16x3x300"}, dir.path().string())
          .code == 2);
}
