// trainkit-emotion as a user runs it: a process with flags, files, exit codes and signals.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "emotion_place.h"

using namespace trainkit;
using namespace trainkit::test;
namespace fs = std::filesystem;

TEST_CASE("A run reads real clips, writes its folder and scores each clip of the test once", "[apps][emotion]") {
  const EmotionPlace place;
  const Ended ended = run_emotion(place.dir, place.flags("run", {}));
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  for (const char* name :
       {"config.yaml", "metrics.jsonl", "summary.json", "results/scores.json", "loss.svg", "results/confusion.svg"}) {
    CHECK(fs::exists(place.dir / "run" + "/" + name));
  }
  for (const char* text : {"clips      train 42, validation 7, test 14", "ResNet18 with random weights",
                           "single on cpu", "test       accuracy ", "| label | clips | recall |", "monitor: "}) {
    INFO(ended.output);
    CHECK(ended.output.find(text) != std::string::npos);
  }
  const auto summary = json_of(place.dir / "run" + "/summary.json");
  const auto scores = json_of(place.dir / "run" + "/results/scores.json");
  for (const char* name : {"accuracy", "weighted_f1", "macro_f1", "majority"})
    CHECK(summary.at(name) == scores.at(name));
  CHECK(summary.at("majority").get<double>() == Approx(1.0 / 7));
  CHECK(scored_clips(place.dir / "run") == 14);
}

TEST_CASE("Damaged and missing clips are replaced, listed once and excluded from scores", "[apps][emotion]") {
  const EmotionPlace place;
  fs::remove(place.data + "/train_splits/dia0_utt0.mp4");
  fs::resize_file(place.data + "/train_splits/dia1_utt3.mp4", 700);
  std::ofstream(place.data + "/output_repeated_splits_test/dia0_utt2.mp4") << "no clip";
  const Ended ended = run_emotion(place.dir, place.flags("run", {"--epochs", "2"}, /*sound=*/true));
  INFO(ended.errors << ended.output);
  REQUIRE(ended.code == 0);
  CHECK(ended.output.find("train 42 (1 without a file)") != std::string::npos);
  CHECK(ended.output.find("without 1 clips that could not be read") != std::string::npos);
  const std::string bad = read_text(place.dir / "run" + "/bad_samples.csv");
  for (const char* name : {"train_splits/dia0_utt0.mp4", "train_splits/dia1_utt3.mp4"}) {
    const size_t first = bad.find(name);
    REQUIRE(first != std::string::npos);
    CHECK(bad.find(std::string("\n") + name, first + 1) == std::string::npos);
  }
  // A limit of 0: the run ends with a data error.
  const Ended strict = run_emotion(place.dir, place.flags("strict", {"--on_error", "fail"}, /*sound=*/true));
  CHECK(strict.code == 4);
  CHECK(strict.errors.find(".mp4") != std::string::npos);
}

TEST_CASE("The guide's command line and configuration are accepted unchanged", "[apps][emotion]") {
  const EmotionPlace place;
  const std::vector<std::vector<std::string>> ways = {
      {"--config", EMOTION_CONFIG},
      {"--preset", "multi_gpu_3x4090"},
      {"--dataset", "MELD", "--use_multi_gpu", "--gpu_ids", "0", "1", "2", "--batch_size", "16", "--num_workers", "12",
       "--auto_scale_lr"}};
  for (const auto& way : ways) {
    std::vector<std::string> flags = {"--data_dir",      place.data,  "--output_dir",
                                      place.dir / "run", "--dry_run", "--no-plan_memory"};
    flags.insert(flags.end(), way.begin(), way.end());
    INFO(way[0]);
    if (!fs::exists("/dev/nvidia2")) {
      const Ended refused = run_emotion(place.dir, flags);
      CHECK(refused.code == 2);
      CHECK(refused.errors.find("hint: ") != std::string::npos);
    }
    flags.insert(flags.end(), {"--device", "cpu"});
    const Ended ended = run_emotion(place.dir, flags);
    INFO(ended.errors << ended.output);
    REQUIRE(ended.code == 0);
    CHECK(ended.output.find("x 3 devices") != std::string::npos);
  }
}

TEST_CASE("A run resumed from a checkpoint has the bits of an uninterrupted run", "[apps][emotion]") {
  const EmotionPlace place;
  const std::vector<std::string> settings = {"--epochs",     "3", "--batch_size", "7", "--log_every", "1",
                                             "--save_every", "5", "--keep_last",  "0"};
  REQUIRE(run_emotion(place.dir, place.flags("whole", settings, /*sound=*/true)).code == 0);
  std::vector<std::string> resumed = settings;
  const std::string from = place.dir / "whole" + "/checkpoints/step-00000005";
  resumed.insert(resumed.end(), {"--resume", from, "--num_workers", "2"});
  const Ended ended = run_emotion(place.dir, place.flags("again", resumed, /*sound=*/true));
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  CHECK(checkpoint_bytes(place.dir / "again", "00000018") == checkpoint_bytes(place.dir / "whole", "00000018"));
  CHECK(json_of(place.dir / "again" + "/results/scores.json") == json_of(place.dir / "whole" + "/results/scores.json"));
}

TEST_CASE("A run is not resumed with another list of clips", "[apps][emotion]") {
  const EmotionPlace place;
  REQUIRE(run_emotion(place.dir, place.flags("run", {"--save_every", "2"}, /*sound=*/true)).code == 0);
  const std::string csv = place.data + "/train_sent_emo.csv";
  const std::string rows = read_text(csv);
  std::ofstream(csv) << rows.substr(0, rows.rfind('\n', rows.size() - 2) + 1);  // without the last row
  const Ended ended =
      run_emotion(place.dir, place.flags("run", {"--resume", "latest", "--epochs", "2"}, /*sound=*/true));
  INFO(ended.errors);
  CHECK(ended.code == 4);
  CHECK(ended.errors.find("error[data.changed]") != std::string::npos);
  CHECK(ended.errors.find("the run was trained on other data") != std::string::npos);
}

TEST_CASE("Two replicas train as one process with the same rows, and score each clip once", "[apps][emotion]") {
  const EmotionPlace place;
  const auto result = [&](const std::string& name, std::vector<std::string> more) {
    more.insert(more.end(), {"--global_batch_size", "14", "--batch_size", more.empty() ? "14" : "7", "--epochs", "2",
                             "--dropout", "0", "--log_every", "1"});
    const Ended ended = run_emotion(place.dir, place.flags(name, more, /*sound=*/true));
    INFO(ended.errors);
    REQUIRE(ended.code == 0);
    return losses(place.dir / name);
  };
  const auto one = result("one", {}), two = result("two", {"--parallel", "2"});
  REQUIRE(one.size() == two.size());
  for (size_t i = 0; i < one.size(); ++i) {
    INFO(one[i] << " against " << two[i]);
    CHECK(two[i].step == one[i].step);
    CHECK(two[i].loss == Approx(one[i].loss).epsilon(1e-3));
  }
  CHECK(scored_clips(place.dir / "two") == 14);
}
