#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>

#include "apps/runs.h"
#include "hsi_classification/perf.h"
#include "test_util.h"
#include "trainkit/app/benchmark.h"

using namespace trainkit;
using namespace trainkit::hsi;
using namespace trainkit::test;

namespace {

nlohmann::json json_in(const std::string& path) { return nlohmann::json::parse(read_text(path)); }

}  // namespace

TEST_CASE("The verdict names the bottleneck of the step and the setting to change", "[apps][hsi][benchmark]") {
  using Catch::Contains;
  CHECK_THAT(perf_verdict(50'000, 5'000, 4'900, 2, FeedKind::kDevice),
             Contains("not starved") && Contains("--feed device") && Contains("98%"));
  CHECK_THAT(perf_verdict(3'000, 5'000, 2'900, 2, FeedKind::kLoader),
             Contains("starves") && Contains("--num_workers 4") && Contains("60%"));
  CHECK_THAT(perf_verdict(50'000, 5'000, 3'000, 2, FeedKind::kLoader),
             Contains("compete for the processors") && Contains("fewer --num_workers"));
}

TEST_CASE("The cheapest of equally fast settings is recommended", "[apps][hsi][benchmark]") {
  const auto point = [](FeedKind feed, int64_t workers, int64_t prefetch, int64_t batch, double rate) {
    return SweepPoint{feed, workers, prefetch, batch, rate};
  };
  const SweepPoint best =
      recommended({point(FeedKind::kLoader, 4, 4, 256, 1000), point(FeedKind::kLoader, 2, 2, 256, 985),
                   point(FeedKind::kLoader, 2, 4, 128, 990), point(FeedKind::kLoader, 1, 2, 32, 500)});
  CHECK(best.batch_size == 128);
  CHECK(best.num_workers == 2);
  CHECK(recommended({point(FeedKind::kLoader, 0, 2, 32, 1000), point(FeedKind::kDevice, 1, 2, 32, 990)}).feed ==
        FeedKind::kDevice);
  CHECK(recommended({point(FeedKind::kDevice, 1, 2, 32, 900), point(FeedKind::kLoader, 4, 4, 256, 1000)}).batch_size ==
        256);
}

TEST_CASE("Loader, step and training are measured separately, and the time of an epoch is rows divided by rate",
          "[apps][hsi][benchmark]") {
  RandomScene scene;
  scene.model = {.model = "cnn2d", .bands = 8, .patch_size = 5, .num_classes = 4};
  scene.height = 20;
  scene.width = 21;
  scene.epoch_rows = 64;
  RunOptions run{.num_workers = {1}, .prefetch_factor = {2}, .batch_size = {8}};
  Placement placement{.batch = {.batch_size = 8}};
  const auto measure = [&](Measured measured) {
    return measure_speed(make_bench(scene, placement.devices), measured, run, MachineInfo::here(), placement, 0.05);
  };
  for (const FeedKind feed : {FeedKind::kDevice, FeedKind::kLoader}) {
    scene.feed = feed;
    const Speed both = measure(Measured::kBoth).value();
    CHECK(both.rows_per_second > 0);
    CHECK(both.epoch_seconds == Approx(64 / both.rows_per_second));
    CHECK(both.waiting_share >= 0);
    CHECK(both.waiting_share <= 1);
    CHECK(both.utilisation == Approx(1 - both.waiting_share));
    const Speed step = measure(Measured::kStep).value();
    CHECK(step.rows_per_second > 0);
    CHECK(step.waiting_share == 0);
    CHECK(measure(Measured::kLoader).value().rows_per_second > 0);
  }
  placement.devices = {at::kCPU, at::kCPU};
  placement.batch.replicas = 2;
  CHECK(measure(Measured::kBoth).value().rows_per_second > 0);
  run.batch_size = {100};
  placement.batch.batch_size = 100;  // More than the rows of an epoch: an error, not an endless search for a batch.
  CHECK_FALSE(measure(Measured::kBoth).ok());
}

TEST_CASE("benchmark, sweep and quick_perf_test print a table and write the same values as JSON",
          "[apps][hsi][benchmark]") {
  const TempDir dir;
  const std::string place = dir.path().string();
  const std::vector<std::string> quick = {"--device", "cpu", "--bands", "8", "--patch_size", "5", "--seconds", "0.05"};
  const auto run = [&](std::vector<std::string> words) {
    words.insert(words.end(), quick.begin(), quick.end());
    words.insert(words.end(), {"--json", dir / (words[0] + ".json")});
    return run_to_end("trainkit-hsi", words, place);
  };
  const Ended scaling = run({"benchmark", "--gpus", "2"});
  INFO(scaling.errors);
  REQUIRE(scaling.code == 0);
  CHECK_THAT(scaling.output, Catch::Contains("efficiency") && Catch::Contains("waiting"));
  const auto results = json_in(dir / "benchmark.json").at("results");
  REQUIRE(results.size() == 4);
  for (const size_t i : {0, 1, 2, 3}) {
    CHECK(results[i].at("feed") == (i < 2 ? "device" : "loader"));
    CHECK(results[i].at("precision") == "fp32");
    CHECK(results[i].at("devices") == i % 2 + 1);
    CHECK((results[i].at("efficiency") == 1.0) == (i % 2 == 0));
    for (const char* name :
         {"epoch_seconds", "patches_per_second", "speedup", "utilisation", "waiting_share", "swing"}) {
      CHECK(results[i].contains(name));
    }
  }

  const Ended test = run({"quick_perf_test"});
  REQUIRE(test.code == 0);
  CHECK_THAT(test.output, Catch::Contains("loader alone") && Catch::Contains("step alone") && Catch::Contains("both") &&
                              Catch::Contains("verdict: "));
  CHECK(json_in(dir / "quick_perf_test.json").contains("verdict"));

  const Ended swept = run({"sweep"});
  REQUIRE(swept.code == 0);
  CHECK_THAT(swept.output, Catch::Contains("recommended: trainkit-hsi --model cnn2d --patch_size 5 --batch_size "));
  const auto sweep = json_in(dir / "sweep.json");
  CHECK(sweep.at("results").size() >= 6);
  // The recommendation is a command line that the program accepts.
  CHECK_THAT(swept.output, Catch::Contains(sweep.at("recommended").get<std::string>()));
}

TEST_CASE("benchmark measures one feed, mixed precision, and the ranks of a launcher together",
          "[apps][hsi][benchmark]") {
  const TempDir dir;
  const Ended ended = run_to_end("trainkit",
                                 {"launch",
                                  "--nproc_per_node",
                                  "2",
                                  "--",
                                  TRAINKIT_BIN_DIR "/trainkit-hsi",
                                  "benchmark",
                                  "--device",
                                  "cpu",
                                  "--bands",
                                  "8",
                                  "--patch_size",
                                  "5",
                                  "--seconds",
                                  "0.2",
                                  "--feed",
                                  "loader",
                                  "--precision",
                                  "bf16",
                                  "--json",
                                  dir / "ranks.json"},
                                 dir.path().string());
  INFO(ended.output << ended.errors);
  REQUIRE(ended.code == 0);
  CHECK_THAT(ended.output, Catch::Contains("devices  feed    precision") && Catch::Contains("      2  loader  bf16"));
  CHECK_THAT(ended.output, !Catch::Contains("[rank 1]"));
  const auto results = json_in(dir / "ranks.json").at("results");
  REQUIRE(results.size() == 1);
  CHECK(results[0].at("ranks") == 2);
  CHECK(results[0].at("precision") == "bf16");
  CHECK(results[0].at("patches_per_second").get<double>() > 0);
  CHECK(results[0].at("speedup").is_null());  // one rank was not measured
}

TEST_CASE("Commands refuse flags that are not theirs and devices that are not there", "[apps][hsi][benchmark]") {
  const TempDir dir;
  const std::string place = dir.path().string();
  for (const std::vector<std::string>& words : {std::vector<std::string>{"quick_perf_test", "--gpus", "2"},
                                                {"benchmark", "--gpus", "0"},
                                                {"benchmark", "--patch_size", "4"},
                                                {"benchmark", "--model", "ssrn", "--bands", "3"},
                                                {"benchmark", "--device", "cuda", "--gpus", "64"},
                                                {"benchmark", "--device", "cpu", "--precision", "fp16"},
                                                {"sweep", "--workers"}}) {
    const Ended ended = run_to_end("trainkit-hsi", words, place);
    INFO(words[0] << " " << words[1] << "\n" << ended.errors);
    CHECK(ended.code == 2);
    CHECK(ended.errors.starts_with("trainkit: error["));
  }
  CHECK(run_to_end("trainkit-hsi", {"benchmark", "--help"}, place).output.find("--gpus") != std::string::npos);
}
