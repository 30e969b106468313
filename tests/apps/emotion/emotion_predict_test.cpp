// trainkit-emotion predict as a user runs it.
#include <ATen/Functions.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "apps/emotion/emotion_place.h"
#include "emotion_recognition/clip_windows.h"
#include "emotion_recognition/predict.h"
#include "trainkit/data/prefetcher.h"
#include "trainkit/io/table.h"

using namespace trainkit;
using namespace trainkit::test;
namespace fs = std::filesystem;

namespace {

void train_emotion(const EmotionPlace& place, const std::vector<std::string>& more = {}, bool sound = false) {
  const Ended ended = run_emotion(place.dir, place.flags("run", more, sound));
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
}

/// Folder of the demonstration's test clips.
std::string test_clips(const EmotionPlace& place) {
  for (const auto& entry : fs::recursive_directory_iterator(place.data)) {
    if (entry.is_directory() && entry.path().filename().string().find("splits_test") != std::string::npos) {
      return entry.path().string();
    }
  }
  return emotion::find_split(place.data, "test")->folder;
}

at::Tensor only_row(const Dataset& dataset, int64_t index, const std::string& field) {
  const auto shared = std::shared_ptr<const Dataset>(&dataset, [](const Dataset*) {});
  const auto loader = Prefetcher::create(shared, SequentialSampler(dataset.size()), {}).value();
  for (int64_t i = 0; i < index; ++i) loader->next().value();
  return (*loader->next().value())[field][0].clone();
}

}  // namespace

TEST_CASE("predict on the test clips gives the trainer's own predictions, and lists unreadable clips",
          "[apps][emotion]") {
  const EmotionPlace place;
  train_emotion(place);
  const std::string clips = test_clips(place), before = folder_contents(place.dir / "run");
  fs::copy(clips, place.dir / "clips");
  std::ofstream(place.dir / "clips" + "/broken.mp4") << "no clip\n";
  std::ofstream(place.dir / "clips" + "/readme.txt") << "not listed\n";
  const auto predict = [&](const std::string& out, const std::string& parallel) {
    const Ended ended = run_emotion(place.dir, {"predict", place.dir / "run", place.dir / "clips", "absent.mp4",
                                                "--out", place.dir / out, "--parallel", parallel});
    INFO(ended.errors);
    REQUIRE(ended.code == 0);
    CHECK(ended.errors.find("the best in validation") != std::string::npos);
    CHECK(ended.output.find("unreadable: is not a video or audio file") != std::string::npos);
    CHECK(ended.output.find("unreadable: no such file") != std::string::npos);
    CHECK(ended.output.find("clips: 1 entry left out: readme.txt (another extension)") != std::string::npos);
    return read_text(place.dir / out);
  };
  const std::string one = predict("one.csv", "1");
  CHECK(predict("three.csv", "3") == one);
  CHECK(folder_contents(place.dir / "run") == before);

  const Table trained = Table::open(place.dir / "run" + "/results/predictions.csv").value();
  const Table table = Table::open(place.dir / "one.csv").value();
  REQUIRE(table.rows() == trained.rows() + 2);
  int64_t compared = 0;
  for (int64_t i = 0; i < trained.rows(); ++i) {
    for (int64_t row = 0; row < table.rows(); ++row) {
      if (!table.at(row, 0).ends_with("/" + std::string(trained.at(i, 0)))) continue;
      ++compared;
      CHECK(table.at(row, 1) == trained.at(i, 2));
      for (int64_t k = 0; k < 7; ++k) CHECK(table.at(row, 2 + k) == trained.at(i, 3 + k));
    }
  }
  CHECK(compared == trained.rows());
}

TEST_CASE("A clip is divided into windows, without a short remainder", "[apps][emotion]") {
  const auto ends = [](double length, double seconds) {
    std::vector<double> list;
    for (const auto& window : emotion::windows_of(0, length, seconds)) list.push_back(window.end);
    return list;
  };
  CHECK(ends(5, 2) == std::vector<double>{2, 4, 5});
  CHECK(ends(4.8, 2) == std::vector<double>{2, 4});
  CHECK(ends(0.3, 2) == std::vector<double>{0.3});
}

TEST_CASE("Windows have the frames and the sound of their part of the clip", "[apps][emotion]") {
  const EmotionPlace place;
  const std::string clip = test_clips(place) + "/dia0_utt0.mp4";
  const double seconds = emotion::clip_seconds(clip).value();
  REQUIRE(seconds > 1);
  emotion::ClipDatasetOptions options{.frames = 4, .image_size = 32, .samples = 4000};
  const auto clips = std::make_shared<const emotion::ClipDataset>(
      emotion::ClipList{.csv = "", .folder = "", .labels = {"a"}, .clips = {{.path = clip}}}, options);
  const emotion::ClipWindowDataset windows(clips, {{0, 0, seconds}, {0, 0.5, 0.75}, {0, 90, 91}});
  CHECK(at::equal(only_row(windows, 0, "frames"), only_row(*clips, 0, "frames")));
  CHECK(only_row(windows, 0, "has_audio").item<bool>());
  const at::Tensor sound = MediaFile::open(clip)->samples({.sample_rate = 16'000})->data[0];
  CHECK(at::equal(only_row(windows, 1, "audio"), sound.slice(0, 8000, 12'000)));
  CHECK_FALSE(only_row(windows, 2, "has_audio").item<bool>());
}

TEST_CASE("Windows of pictures that change their rate go by time stamps, and a whole clip is read as in training",
          "[apps][emotion]") {
  if (data_dir().empty()) TRAINKIT_SKIP("no TRAINKIT_TEST_DATA");
  emotion::ClipDatasetOptions options{.modality = emotion::Modality::kVisual, .frames = 4, .image_size = 32};
  const auto rows = [&](const std::string& name, double seconds) {
    const std::string clip = data_dir() + "/reports/" + name;
    const auto clips = std::make_shared<const emotion::ClipDataset>(
        emotion::ClipList{.csv = "", .folder = "", .labels = {"a"}, .clips = {{.path = clip}}}, options);
    const emotion::ClipWindowDataset windows(clips,
                                             emotion::windows_of(0, emotion::clip_seconds(clip).value(), seconds));
    std::vector<at::Tensor> all;
    for (int64_t i = 0; i < windows.size(); ++i) all.push_back(only_row(windows, i, "frames").to(at::kFloat));
    return at::stack(all);
  };
  const at::Tensor variable = rows("vfr.mp4", 1), constant = rows("cfr.mp4", 1);
  REQUIRE(variable.sizes() == constant.sizes());
  CHECK(variable.size(0) > 1);
  CHECK((variable - constant).abs().mean().item<double>() < 6);
}

TEST_CASE("The sound of a window begins where its picture does", "[apps][emotion]") {
  if (data_dir().empty()) TRAINKIT_SKIP("no TRAINKIT_TEST_DATA");
  for (const char* name : {"nasa_13013.mp4", "chaplin.mp4", "realshort.mp4", "big_buck_bunny_432_433.webm"}) {
    const std::string clip = data_dir() + "/media/clips/" + name;
    const MediaFile file = MediaFile::open(clip).value();
    if (!file.audio()) continue;
    const AudioSamples sound = file.samples().value();
    const double apart = file.video()->begin_stream_seconds - sound.pts_seconds;
    CAPTURE(name, apart);
    emotion::ClipDatasetOptions options{.frames = 2, .image_size = 32, .samples = 1600};
    const auto clips = std::make_shared<const emotion::ClipDataset>(
        emotion::ClipList{.csv = "", .folder = "", .labels = {"a"}, .clips = {{.path = clip}}}, options);
    const emotion::ClipWindowDataset windows(clips, {{0, 0, 0.1}});
    const int64_t begin = std::llround(apart * 16'000), length = sound.data.size(1);
    const int64_t first = std::clamp<int64_t>(begin, 0, length),
                  last = std::clamp<int64_t>(begin + 1600, first, length);
    at::Tensor expected = at::zeros({1600});
    expected.slice(0, first - begin, last - begin).copy_(sound.data[0].slice(0, first, last));
    CHECK(at::equal(only_row(windows, 0, "audio"), expected));
  }
}

TEST_CASE("predict with --window gives a row for each window", "[apps][emotion]") {
  const EmotionPlace place;
  train_emotion(place, {}, /*sound=*/true);
  const std::string clip = test_clips(place) + "/dia0_utt0.mp4";
  const Ended ended = run_emotion(
      place.dir, {"predict", place.dir / "run", clip, "--window", "0.5", "--out", place.dir / "windows.csv"});
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  const Table table = Table::open(place.dir / "windows.csv").value();
  CHECK(table.rows() == std::llround(emotion::clip_seconds(clip).value() / 0.5));
  CHECK(table.at(1, 1) == "0.500");
  CHECK(table.at(1, 2) == "1.000");
}

TEST_CASE("predict refuses bad input with one line and writes nothing", "[apps][emotion]") {
  const EmotionPlace place;
  train_emotion(place);
  const std::string good = place.dir / "run", out = place.dir / "out.csv", clips = test_clips(place);
  fs::create_directory(place.dir / "empty");
  std::ofstream(place.dir / "broken.mp4") << "no clip\n";
  fs::copy(good, place.dir / "damaged", fs::copy_options::recursive);
  std::ofstream(place.dir / "damaged" + "/labels.json") << "{}";
  // A run of an earlier version with labels of its own.
  fs::copy(good, place.dir / "old", fs::copy_options::recursive);
  fs::remove(place.dir / "old" + "/labels.json");
  struct Case {
    std::vector<std::string> words;
    int code;
    std::string text;
  };
  const std::vector<Case> cases = {
      {{"predict", good, "--out", out}, 2, "CLIP: not given"},
      {{"predict", place.dir / "absent", clips, "--out", out}, 5, "no such folder"},
      {{"predict", place.dir / "empty", clips, "--out", out}, 5, "not the folder of a run"},
      {{"predict", place.dir / "damaged", clips, "--out", out},
       5,
       "labels.json: has another type (got 'object', expected a list)"},
      {{"predict", place.dir / "old", clips, "--out", out, "--dataset", "csv"}, 5, "has not stored its labels"},
      {{"predict", good, place.dir / "empty", "--out", out}, 4, "no clips in this folder"},
      {{"predict", good, place.dir / "broken.mp4", "--out", out}, 4, "broken.mp4: is not a video or audio file"},
      {{"predict", good, clips, "--out", out, "--window", "-1"}, 2, "--window"},
      {{"predict", good, clips, "--out", out, "--window", "x"}, 2, "--window"},
      {{"predict", good, clips, "--out", out, "--window", "1e-9"}, 2, "--window: too short"},
      {{"predict", good, clips, "--out", place.dir / "absent" + "/out.csv"}, 6, "absent"}};
  for (const Case& bad : cases) {
    const Ended ended = run_emotion(place.dir, bad.words);
    INFO(ended.errors);
    CHECK(ended.code == bad.code);
    CHECK(ended.errors.find(bad.text) != std::string::npos);
    CHECK(ended.output.empty());
    CHECK_FALSE(fs::exists(out));
  }
  // MELD's labels are known.
  CHECK(run_emotion(place.dir, {"predict", place.dir / "old", clips}).code == 0);
}
