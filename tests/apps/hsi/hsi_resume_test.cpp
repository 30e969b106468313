// trainkit-hsi interrupted at random moments: a few times, or hundreds of times with TRAINKIT_TEST_FULL (./dev test
// --full).
#include <ATen/TensorOperators.h>

#include <nlohmann/json.hpp>

#include "apps/continued.h"
#include "apps/hsi/hsi_place.h"
#include "apps/interruptions.h"
#include "test_util.h"
#include "trainkit/arrays/array_file.h"
#include "trainkit/arrays/mat.h"

using namespace trainkit;
using namespace trainkit::test;

TEST_CASE("Runs of trainkit-hsi interrupted at random moments end with the bytes of an uninterrupted run",
          "[apps][hsi][resume]") {
  const HsiPlace place;
  const std::vector<std::string> more = {"--epochs", "8", "--save_every", "7", "--eval_every", "20", "--ema", "0.9"};
  verify_resume("trainkit-hsi", place.flags("", more), place.dir);
}

TEST_CASE("Runs of trainkit-hsi may change workers and feed mode at each start", "[apps][hsi][resume]") {
  const HsiPlace place;
  const std::vector<std::string> more = {"--epochs", "8", "--save_every", "7", "--eval_every", "20"};
  verify_resume("trainkit-hsi", place.flags("", more), place.dir, Interruptions{.vary = "feed=loader:device"});
}

TEST_CASE("A run of trainkit-hsi continues from its folder alone, and a refused one changes no file",
          "[apps][hsi][resume]") {
  const HsiPlace place;
  const auto flags = [&](const std::string& run, const std::string& steps) {
    return place.flags(run, {"--max_steps", steps, "--epochs", "100", "--save_every", "3", "--eval_every", "3",
                             "--scheduler", "constant", "--warmup_steps", "0", "--ema", "0.9"});
  };
  check_continued({.program = "trainkit-hsi",
                   .flags = flags("run", "6"),
                   .whole_flags = flags("whole", "9"),
                   .run = place.dir / "run",
                   .whole = place.dir / "whole",
                   .fixed = {"--patch_size", "3"},
                   .change_data =
                       [&] {
                         const DemoSceneOptions other{.height = 30, .width = 32, .bands = 16, .classes = 3, .seed = 5};
                         REQUIRE(write_demo_scene(place.dir.path().string(), other).ok());
                       }},
                  place.dir);
}

TEST_CASE("predict of a run of trainkit-hsi with --ema uses the average of the weights", "[apps][hsi][resume]") {
  const HsiPlace place;
  const auto start = [&](const std::vector<std::string>& words) {
    const Ended ended = run_to_end("trainkit-hsi", words, place.dir.path().string());
    INFO(ended.errors);
    REQUIRE(ended.code == 0);
  };
  start(place.flags("run", {"--ema", "0.9", "--epochs", "3", "--keep_last", "0"}));
  check_average(place.dir / "run", [&](const std::string& run) {
    start({"predict", run, "--cube", place.dir / "demo.mat", "--out", place.dir / "out", "--overwrite", "--device",
           "cpu"});
    return read_text(place.dir / "out/probabilities.npy");
  });
}

TEST_CASE("trainkit-hsi keeps and tests the best weights when training makes them worse", "[apps][hsi][resume]") {
  const HsiPlace place;
  const auto start = [&](const std::vector<std::string>& words) {
    const Ended ended = run_to_end("trainkit-hsi", words, place.dir.path().string());
    INFO(ended.errors);
    REQUIRE(ended.code == 0);
  };
  const auto summary = [&] { return nlohmann::json::parse(read_text(place.dir / "run/summary.json")); };
  start(place.flags("run", {"--max_steps", "60", "--epochs", "100", "--eval_every", "30", "--save_every", "30",
                            "--scheduler", "constant", "--warmup_steps", "0"}));
  const auto before = summary();
  start(
      {"--output_dir", place.dir / "run", "--resume", "latest", "--max_steps", "62", "--eval_every", "1", "--lr", "5"});
  const auto after = summary();
  CHECK(after.at("steps") == 62);
  CHECK(after.at("best_step") == before.at("best_step"));
  for (const char* score : {"oa", "aa", "kappa"}) CHECK(after.at(score) == before.at(score));
  const auto classes = [&](const std::string& run) {
    start({"predict", run, "--cube", place.dir / "demo.mat", "--out", place.dir / "out", "--overwrite", "--device",
           "cpu"});
    return read_npy(place.dir / "out/classes.npy").value();
  };
  const at::Tensor tested = MatFile::open(place.dir / "run/results/maps.mat")->read("classification").value();
  CHECK(classes(place.dir / "run").equal(tested.to(at::kLong)));
  CHECK_FALSE(classes(place.dir / "run/checkpoints").equal(tested.to(at::kLong)));
}
