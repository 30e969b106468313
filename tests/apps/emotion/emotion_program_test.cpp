// trainkit-emotion as a user runs it: a process with flags, files, exit codes and signals.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/continued.h"
#include "apps/emotion/emotion_place.h"
#include "apps/presets.h"
#include "emotion_recognition/options.h"

using namespace trainkit;
using namespace trainkit::test;
namespace fs = std::filesystem;

TEST_CASE("A run reads real clips, writes its folder and scores each clip of the test once", "[apps][emotion]") {
  const EmotionPlace place;
  const Ended ended = run_emotion(place.dir, place.flags("run", {}));
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  for (const char* name :
       {"config.yaml", "metrics.jsonl", "summary.json", "results/scores.json", "results/confusion.svg"}) {
    CHECK(fs::exists(place.dir / "run" + "/" + name));
  }
  for (const char* text : {"clips      train 42, validation 7, test 14", "ResNet18 with random weights",
                           "warning: the frame encoder starts from random weights", "single on cpu",
                           "test       accuracy ", "\nlabel ", "clips", "monitor: "}) {
    INFO(ended.output);
    CHECK(ended.output.find(text) != std::string::npos);
  }
  const auto summary = json_of(place.dir / "run" + "/summary.json");
  const auto scores = json_of(place.dir / "run" + "/results/scores.json");
  for (const char* name : {"accuracy", "weighted_f1", "macro_f1", "majority"})
    CHECK(summary.at(name) == scores.at(name));
  CHECK(summary.at("majority").get<double>() == Approx(1.0 / 7));
  const std::string report = read_text(place.dir / "run/report.html");
  for (const char* text : {"weighted F1", "Confusion matrix", "The least sure", "p(true)", "dia0_utt0.mp4", "surprise",
                           "weighted_f1 (selects the best)"}) {
    CHECK_THAT(report, Catch::Contains(text));
  }
  CHECK(scored_clips(place.dir / "run") == 14);
}

TEST_CASE("Damaged and absent clips of all parts are replaced, listed once and excluded from scores",
          "[apps][emotion]") {
  const EmotionPlace place;
  fs::remove(place.data + "/train_splits/dia0_utt0.mp4");
  fs::resize_file(place.data + "/train_splits/dia1_utt3.mp4", 700);
  std::ofstream(place.data + "/dev_splits_complete/dia0_utt1.mp4") << "no clip";
  std::ofstream(place.data + "/output_repeated_splits_test/dia0_utt2.mp4") << "no clip";
  const Ended ended = run_emotion(place.dir, place.flags("run", {"--epochs", "2"}, /*sound=*/true));
  INFO(ended.errors << ended.output);
  REQUIRE(ended.code == 0);
  CHECK_THAT(ended.output, Catch::Contains("train 42 (1 without a file)") &&
                               Catch::Contains("warning: 1 of 63 clips have no file") &&
                               Catch::Contains("unreadable clips: 1)") &&
                               Catch::Contains("rows that could not be read: test 1, train 2, validation 1; "));
  const std::string bad = read_text(place.dir / "run" + "/bad_samples.csv");
  CHECK(bad.starts_with("part,index,epoch,name,cause\n"));
  CHECK(std::count(bad.begin(), bad.end(), '\n') == 1 + 4);
  for (const char* row : {"\ntrain,0,", "\ntrain,10,", "\nvalidation,1,", "\ntest,2,"}) {
    INFO(row << " in " << bad);
    CHECK(bad.find(row) != std::string::npos);
  }
  CHECK_THAT(
      read_text(place.dir / "run/report.html"),
      Catch::Contains("Could not be read") && Catch::Contains("dia0_utt2.mp4: is not a video or audio file</td>"));
  for (const char* name : {"train_splits/dia0_utt0.mp4", "dev_splits_complete/dia0_utt1.mp4"})
    CHECK(bad.find(name) != std::string::npos);
  CHECK(json_of(place.dir / "run" + "/summary.json").at("bad_samples") ==
        nlohmann::json{{"test", 1.0}, {"train", 2.0}, {"validation", 1.0}});
  const Ended skipped =
      run_emotion(place.dir, place.flags("skip", {"--epochs", "2", "--on_error", "skip"}, /*sound=*/true));
  INFO(skipped.errors << skipped.output);
  REQUIRE(skipped.code == 0);
  CHECK(read_text(place.dir / "skip" + "/bad_samples.csv") == bad);
  CHECK(scored_clips(place.dir / "skip") == 13);
  const Ended strict = run_emotion(place.dir, place.flags("strict", {"--on_error", "fail"}, /*sound=*/true));
  CHECK(strict.code == 4);
  CHECK(strict.errors.find(".mp4") != std::string::npos);
}

TEST_CASE("A test without a readable clip is an error of the data", "[apps][emotion]") {
  const EmotionPlace place;
  for (const auto& clip : fs::directory_iterator(place.data + "/output_repeated_splits_test")) {
    fs::resize_file(clip.path(), 0);
  }
  const Ended ended = run_emotion(place.dir, place.flags("run", {}, /*sound=*/true));
  INFO(ended.errors << ended.output);
  CHECK(ended.code == 4);
  CHECK_THAT(ended.errors,
             Catch::Contains("error[data.empty]") && Catch::Contains("none of the test clips can be read: "));
  CHECK_FALSE(fs::exists(place.dir / "run" + "/summary.json"));
}

TEST_CASE("Unreadable clips at the start of every table do not stop a run that replaces them", "[apps][emotion]") {
  const EmotionPlace place;
  for (int clip = 0; clip < 4; ++clip) {
    for (const char* folder : {"/train_splits", "/dev_splits_complete", "/output_repeated_splits_test"})
      std::ofstream(fmt::format("{}{}/dia0_utt{}.mp4", place.data, folder, clip)) << "no clip";
  }
  for (const bool sound : {true, false}) {
    const Ended ended = run_emotion(place.dir, place.flags(sound ? "sound" : "both", {"--batch_size", "auto"}, sound));
    INFO(ended.errors << ended.output);
    REQUIRE(ended.code == 0);
    CHECK_THAT(ended.output, Catch::Contains("unreadable clips: 4)"));
  }
  CHECK(scored_clips(place.dir / "both") == 10);
}

TEST_CASE("More absent clips than --max_missing_share are an error that writes nothing", "[apps][emotion]") {
  const EmotionPlace place;
  for (int clip = 0; clip < 5; ++clip) fs::remove(fmt::format("{}/train_splits/dia2_utt{}.mp4", place.data, clip));
  const Ended refused = run_emotion(place.dir, place.flags("run", {}, /*sound=*/true));
  CHECK(refused.code == 4);
  CHECK_THAT(
      refused.errors,
      Catch::StartsWith("trainkit: error[data.missing] ") &&
          Catch::Contains("train_sent_emo.csv: 5 of 42 clips have no file, the first is ") &&
          Catch::Contains("dia2_utt0.mp4 (line 16) (got '11.9%', expected at most 10% (--max_missing_share 0.1))"));
  CHECK(has_only_error(place.dir / "run"));
  const Ended ended = run_emotion(place.dir, place.flags("run", {"--max_missing_share", "0.12"}, /*sound=*/true));
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  CHECK_THAT(read_text(place.dir / "run" + "/bad_samples.csv"), Catch::Contains("no such file"));
  const Ended bad = run_emotion(place.dir, place.flags("bad", {"--max_missing_share", "1.5"}));
  CHECK(bad.code == 2);
  CHECK_THAT(bad.errors, Catch::Contains("--max_missing_share: out of range (got '1.5', expected 0..1)"));
}

TEST_CASE("The batch follows the model's size, and a preset trains on sound alone", "[apps][emotion]") {
  const EmotionPlace place;
  const auto config = [&](const std::vector<std::string>& flags) {
    std::vector<std::string> all = flags;
    all.insert(all.end(), {"--data_dir", place.data, "--print_config"});
    const Ended ended = run_emotion(place.dir, all);
    INFO(ended.errors);
    REQUIRE(ended.code == 0);
    return ended.output;
  };
  const std::pair<const char*, const char*> sizes[] = {{"simple", "24"}, {"complex", "16"}, {"huge", "8"}};
  for (const auto& [size, clips] : sizes) {
    CHECK_THAT(config({"--model_size", size}), Catch::Contains(fmt::format("\nbatch_size: {} ", clips)) &&
                                                   Catch::Contains(fmt::format("default (model_size {})", size)));
  }
  CHECK_THAT(config({"--model_size", "huge", "--batch_size", "5"}), Catch::Contains("\nbatch_size: 5 "));
  CHECK_THAT(config({"--preset", "multi_gpu_3x4090"}), Catch::Contains("\nbatch_size: 22 "));
  CHECK_THAT(config({"--preset", "audio_only"}),
             Catch::Contains("\nbatch_size: 24 ") && Catch::Contains("\nmodality: audio "));
  const Ended audio = run_emotion(place.dir, {"--data_dir", place.data, "--preset", "audio_only", "--output_dir",
                                              place.dir / "audio", "--epochs", "1", "--no-use_tensorboard"});
  INFO(audio.errors);
  REQUIRE(audio.code == 0);
  CHECK_THAT(audio.output, Catch::Contains("simple, audio") && !Catch::Contains("random weights"));
}

TEST_CASE("The settings that --help lists for a preset of trainkit-emotion are those that it gives",
          "[apps][emotion]") {
  const std::vector<std::string> presets = {"multi_gpu_3x4090", "audio_only"};
  for (const std::string& preset : presets) {
    RunOptions run;
    emotion::EmotionOptions options;
    ConfigParser parser({.name = "trainkit-emotion"});
    emotion::set_run_defaults(run);
    add_run_flags(parser, run);
    emotion::add_emotion_flags(parser, options);
    emotion::add_emotion_presets(parser);
    REQUIRE(parser.parse({"--preset", preset}).ok());
    emotion::set_batch_default(parser, options);
    check_preset(parser, presets, preset);
  }
}

TEST_CASE("Cross-validation keeps each speaker in one fold, and reports mean and standard deviation",
          "[apps][emotion]") {
  const EmotionPlace place;
  std::ofstream(place.data + "/train_splits/dia0_utt1.mp4") << "no clip";
  const std::vector<std::string> flags = {"--folds", "3", "--group", "speaker", "--batch_size", "7"};
  const Ended ended = run_emotion(place.dir, place.flags("run", flags, /*sound=*/true));
  INFO(ended.errors << ended.output);
  REQUIRE(ended.code == 0);
  CHECK_THAT(ended.output, Catch::Contains("fold       1 of 3, by speaker") && Catch::Contains("fold       3 of 3") &&
                               Catch::Contains("train 14, validation 14, test 14") &&
                               Catch::Contains("\n3 folds    accuracy ") && Catch::Contains(" +- "));
  std::map<std::string, int> fold_of_dialogue;  // a dialogue has one speaker
  std::vector<double> accuracies;
  for (int fold = 1; fold <= 3; ++fold) {
    const std::string folder = place.dir / "run" + fmt::format("/fold-{}", fold);
    accuracies.push_back(json_of(folder + "/summary.json").at("accuracy"));
    std::istringstream rows(read_text(folder + "/results/predictions.csv"));
    std::string row;
    std::getline(rows, row);
    while (std::getline(rows, row)) {
      const auto [known, is_new] = fold_of_dialogue.emplace(row.substr(0, row.find('_')), fold);
      CHECK(known->second == fold);
    }
  }
  CHECK(fold_of_dialogue.size() == 6);
  const auto summary = json_of(place.dir / "run" + "/summary.json");
  CHECK(summary.at("repeats") == 3);
  CHECK(summary.at("accuracy").get<double>() == Approx((accuracies[0] + accuracies[1] + accuracies[2]) / 3));
  CHECK(summary.contains("weighted_f1_std"));
  // The clip that is not readable is in each part once.
  CHECK(summary.at("bad_samples") == nlohmann::json{{"test", 1.0}, {"train", 1.0}, {"validation", 1.0}});
  CHECK(summary.at("steps") == 6);
  CHECK(summary.at("runs").size() == 3);
  CHECK(summary.at("runs")[2].at("folder") == "fold-3");
  const auto files = files_of(place.dir / "run");
  const auto resume = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"--output_dir", place.dir / "run", "--resume", "latest"});
    const Ended resumed = run_emotion(place.dir, more);
    INFO(resumed.errors << resumed.output);
    REQUIRE(resumed.code == 0);
    return resumed.output;
  };
  CHECK_THAT(resume({}), Catch::Contains("all 3 runs in ") && Catch::Contains(" are finished"));
  CHECK(files_of(place.dir / "run") == files);
  // A cache of the whole table serves all folds.
  CHECK_THAT(resume({"--epochs", "2", "--cache_dir", place.dir / "cache"}),
             Catch::Contains("folds: 41 clips decoded") && Catch::Contains("folds: 41 clips cached"));
  CHECK(json_of(place.dir / "run" + "/summary.json").at("steps") == 12);
}

TEST_CASE("Wrong settings of a cross-validation are usage or data errors", "[apps][emotion]") {
  const EmotionPlace place;
  struct Case {
    int code;
    std::string text;
    std::vector<std::string> flags;
  };
  const std::string csv = place.data + "/train_sent_emo.csv";
  for (const Case& c : std::vector<Case>{
           {2, "--folds: too few", {"--folds", "2"}},
           {2, "--folds: out of range", {"--folds", "-1"}},
           {2, "--group: needs --folds", {"--group", "speaker"}},
           {2,
            "--val_csv: contradicts --folds",
            {"--folds", "3", "--dataset", "csv", "--train_csv", csv, "--val_csv", csv}},
           {4, "more folds than groups (got '7', expected at most 6)", {"--folds", "7", "--group", "Speaker"}},
           {4, "no such column", {"--folds", "3", "--group", "singer"}}}) {
    const Ended ended = run_emotion(place.dir, place.flags("run", c.flags, /*sound=*/true));
    INFO(ended.errors);
    CHECK(ended.code == c.code);
    CHECK_THAT(ended.errors, Catch::Contains(c.text));
    CHECK(has_only_error(place.dir / "run"));
  }
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
