// trainkit-emotion export as a user runs it.
#include <ATen/Functions.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "apps/emotion/emotion_place.h"
#include "emotion_recognition/clip_dataset.h"
#include "onnx_runtime.h"
#include "trainkit/data/prefetcher.h"
#include "trainkit/io/table.h"

using namespace trainkit;
using namespace trainkit::test;
namespace fs = std::filesystem;

namespace {

/// Clips of the demonstration, one of them without sound.
std::vector<std::string> some_clips(const EmotionPlace& place) {
  std::vector<std::string> clips;
  for (const auto& entry : fs::recursive_directory_iterator(place.data)) {
    if (entry.path().extension() == ".mp4") clips.push_back(entry.path().string());
  }
  std::sort(clips.begin(), clips.end());
  clips.resize(5);
  return clips;
}

}  // namespace

TEST_CASE("An exported model gives predict's probabilities from frames and samples", "[apps][emotion][onnx]") {
  if (!has_onnx_runtime()) TRAINKIT_SKIP("no Python with onnx and onnxruntime");
  const auto [size, fusion, modality] = GENERATE(table<std::string, std::string, std::string>(
      {{"simple", "attention", "both"}, {"huge", "gated", "both"}, {"simple", "attention", "audio"}}));
  INFO(size << " " << fusion << " " << modality);
  const EmotionPlace place;
  const Ended trained =
      run_emotion(place.dir, place.flags("run", {"--model_size", size, "--fusion_type", fusion, "--modality", modality,
                                                 "--max_steps", "2", "--batch_size", "4"}));
  INFO(trained.errors);
  REQUIRE(trained.code == 0);
  const std::vector<std::string> clips = some_clips(place);
  std::vector<std::string> words = {"predict", place.dir / "run"};
  words.insert(words.end(), clips.begin(), clips.end());
  words.insert(words.end(), {"--out", place.dir / "table.csv"});
  REQUIRE(run_emotion(place.dir, words).code == 0);
  const Ended exported = run_emotion(place.dir, {"export", place.dir / "run", place.dir / "model.onnx"});
  INFO(exported.errors);
  REQUIRE(exported.code == 0);

  emotion::ClipList list{.csv = "", .folder = ".", .labels = {"a"}, .clips = {}};
  for (const std::string& clip : clips) list.clips.push_back({.path = clip});
  const auto rows = std::make_shared<const emotion::ClipDataset>(
      list, emotion::ClipDatasetOptions{.frames = 2, .image_size = 32, .samples = 16'000});
  const auto loader = Prefetcher::create(rows, SequentialSampler(rows->size()), {.batch_size = 5}).value();
  const Batch batch = *loader->next().value();
  NamedTensors inputs;
  if (modality != "audio") inputs.emplace_back("frames", batch["frames"].clone());
  inputs.emplace_back("audio", batch["audio"].clone());
  inputs.emplace_back("has_audio", batch["has_audio"].clone());
  const OnnxRun run = run_onnx(place.dir / "model.onnx", inputs);
  const Table table = Table::open(place.dir / "table.csv").value();
  double largest = 0;
  for (int64_t i = 0; i < table.rows(); ++i) {
    for (int64_t k = 0; k < 7; ++k) {
      largest = std::max(
          largest, std::abs(std::stod(std::string(table.at(i, 2 + k))) - run["probabilities"][i][k].item<double>()));
    }
  }
  CHECK(table.rows() == 5);
  CHECK(largest <= 1e-4);
  CHECK(run.facts["metadata"]["class_names"].get<std::string>().starts_with("[\"neutral\""));
}
