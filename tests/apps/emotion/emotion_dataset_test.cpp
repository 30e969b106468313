#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "emotion_recognition/clip_dataset.h"
#include "media/media_clips.h"
#include "trainkit/data/prefetcher.h"
#include "trainkit/media/media.h"

using namespace trainkit;
using namespace trainkit::emotion;
using namespace trainkit::test;

namespace {

constexpr int64_t kRate = 16'000;

/// Clips of 1.5 seconds: with a tone, silent, without an audio track, damaged, missing.
struct Folder {
  Folder() {
    const at::Tensor frames = moving_disc(36, 48, 64);
    const MediaWriterOptions options{.frame_rate = 24, .sample_rate = kRate, .preset = "ultrafast"};
    REQUIRE(write_media(dir / "tone.mp4", frames, tone(440, 3 * kRate / 2, kRate), options).ok());
    REQUIRE(write_media(dir / "silent.mp4", frames, torch::zeros({1, 3 * kRate / 2}), options).ok());
    REQUIRE(write_media(dir / "mute.mp4", frames, {}, options).ok());
    REQUIRE(write_media(dir / "voice.mp4", {}, tone(440, 3 * kRate / 2, kRate), options).ok());
    std::filesystem::copy(dir / "tone.mp4", dir / "cut.mp4");
    std::filesystem::resize_file(dir / "cut.mp4", 3000);
  }
  ClipList list(const std::vector<std::string>& names) const {
    ClipList list{.csv = "x.csv", .folder = dir.path().string(), .labels = meld_emotions(), .clips = {}};
    for (const std::string& name : names) {
      list.clips.push_back({dir / name, static_cast<int64_t>(list.clips.size()) % 7, list.size() + 2});
    }
    return list;
  }
  TempDir dir;
};

ClipDatasetOptions small(Modality modality = Modality::kBoth) {
  return {.modality = modality, .frames = 3, .image_size = 32, .samples = kRate};
}

Batch rows_of(const std::shared_ptr<const Dataset>& dataset, const PrefetcherOptions& options = {}) {
  PrefetcherOptions all = options;
  all.batch_size = dataset->size();
  auto loader = Prefetcher::create(dataset, SequentialSampler(dataset->size()), all).value();
  auto batch = loader->next();
  REQUIRE(batch.ok());
  return **batch;
}

}  // namespace

TEST_CASE("A row has the frames of a clip, the middle of its audio, and its label", "[apps][emotion]") {
  const Folder folder;
  const auto dataset = std::make_shared<ClipDataset>(folder.list({"tone.mp4", "silent.mp4", "mute.mp4"}), small());
  const Batch batch = rows_of(dataset);
  CHECK(batch["frames"].sizes() == at::IntArrayRef({3, 3, 32, 32, 3}));
  CHECK(batch["frames"].scalar_type() == at::kByte);
  const auto clip = MediaFile::open(folder.dir / "tone.mp4").value();
  const at::Tensor frames = clip.spread_frames(3, {.height = 32, .width = 32}).value().data;
  CHECK(at::equal(batch["frames"][0], frames.permute({0, 2, 3, 1})));
  const at::Tensor sound = clip.samples().value().data[0];
  CHECK(at::equal(batch["audio"][0], sound.narrow(0, (sound.size(0) - kRate) / 2, kRate)));
  CHECK(at::equal(batch["has_audio"], torch::tensor({true, false, false})));
  CHECK(batch["audio"][2].abs().sum().item<double>() == 0);
  CHECK(at::equal(batch["label"], torch::tensor({0, 1, 2}, at::kLong)));
}

TEST_CASE("Audio shorter than a row is padded with silence", "[apps][emotion]") {
  const Folder folder;
  ClipDatasetOptions options = small(Modality::kAudio);
  options.samples = 3 * kRate;
  const Batch batch = rows_of(std::make_shared<ClipDataset>(folder.list({"tone.mp4", "voice.mp4"}), options));
  CHECK(batch["audio"][0].narrow(0, 0, kRate).abs().max().item<float>() > 0.3F);
  CHECK(batch["audio"][0].narrow(0, 2 * kRate, kRate).abs().max().item<float>() == 0);
  CHECK_FALSE(batch.contains("frames"));
}

TEST_CASE("Unreadable clips are bad rows, replaced if requested", "[apps][emotion]") {
  const Folder folder;
  for (const std::string bad : {"cut.mp4", "missing.mp4", "voice.mp4"}) {
    INFO(bad);
    const auto dataset = std::make_shared<ClipDataset>(folder.list({"tone.mp4", bad, "silent.mp4"}), small());
    auto loader = Prefetcher::create(dataset, SequentialSampler(3), {.batch_size = 3}).value();
    const auto failed = loader->next();
    REQUIRE_FALSE(failed.ok());
    CHECK(std::string(failed.status().message()).find(bad) != std::string::npos);
    auto replacing =
        Prefetcher::create(dataset, SequentialSampler(3), {.batch_size = 3, .on_error = OnError::kReplace}).value();
    CHECK(replacing->next().value()->size() == 3);
    REQUIRE(replacing->bad_samples().size() == 1);
  }
  // With audio only the frames are not read.
  CHECK(rows_of(std::make_shared<ClipDataset>(folder.list({"voice.mp4"}), small(Modality::kAudio))).size() == 1);
  const auto deaf = std::make_shared<ClipDataset>(folder.list({"mute.mp4"}), small(Modality::kAudio));
  CHECK_FALSE(Prefetcher::create(deaf, SequentialSampler(1), {.batch_size = 1}).value()->next().ok());
}

TEST_CASE("Rows do not depend on the number of workers", "[apps][emotion]") {
  const Folder folder;
  const auto dataset =
      std::make_shared<ClipDataset>(folder.list({"tone.mp4", "silent.mp4", "mute.mp4", "tone.mp4"}), small());
  const Batch alone = rows_of(dataset), together = rows_of(dataset, {.num_workers = 2});
  for (size_t i = 0; i < alone.tensors().size(); ++i) CHECK(at::equal(alone.tensors()[i], together.tensors()[i]));
}
