// Decodes clips of 3 s in 720p with sound to 8 images of 224 x 224 and a log-mel spectrogram, in two threads. The peer,
// peers/media_clips.py, reads the files written here.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <numbers>

#include "rounds.h"
#include "trainkit/core/error.h"
#include "trainkit/media/media.h"
#include "trainkit/nn/mel_spectrogram.h"

namespace trainkit {
namespace {

constexpr int64_t kClips = 4, kFrames = 72, kHeight = 720, kWidth = 1280;
constexpr int64_t kSamples = 48'000;

/// Shapes that move slowly over a static pattern with camera noise. x264 encodes it with one key frame and three
/// B-frames between others, as most films and series.
at::Tensor pictures(int64_t clip) {
  const at::Tensor y = at::arange(kHeight, at::kFloat).view({-1, 1}), x = at::arange(kWidth, at::kFloat).view({1, -1});
  const at::Tensor pattern = ((x / 37).sin() * (y / 23).cos() * 60 + 110 + x / 16).unsqueeze(0);
  at::Tensor frames = at::empty({kFrames, 3, kHeight, kWidth}, at::kByte);
  for (int64_t i = 0; i < kFrames; ++i) {
    const double angle = 2 * std::numbers::pi * static_cast<double>(i + 9 * clip) / 240;
    at::Tensor picture = pattern.expand({3, kHeight, kWidth}).clone();
    for (int64_t k = 0; k < 5; ++k) {
      const double from_left = kWidth * (0.5 + 0.35 * std::cos(angle + static_cast<double>(k)));
      const double from_top = kHeight * (0.5 + 0.35 * std::sin(angle * 0.7 + 2.0 * static_cast<double>(k)));
      const at::Tensor inside = ((x - from_left).square() + (y - from_top).square()).lt(8000.0 + 1500 * k);
      picture.select(0, k % 3).masked_fill_(inside, 230.0 - 30 * k);
    }
    picture += at::rand({1, kHeight, kWidth}) * 12 - 6;
    frames.select(0, i).copy_(picture.clamp(0, 255));
  }
  return frames;
}

/// Paths of the clips, which the first call writes.
const std::array<std::string, kClips>& clips() {
  static const std::array<std::string, kClips> paths = [] {
    const auto folder = std::filesystem::temp_directory_path() / "trainkit-bench-media-1";
    std::filesystem::create_directories(folder);
    std::array<std::string, kClips> made;
    for (int64_t clip = 0; clip < kClips; ++clip) {
      made[clip] = (folder / (std::to_string(clip) + ".mp4")).string();
      if (std::filesystem::exists(made[clip])) continue;
      at::manual_seed(static_cast<uint64_t>(clip));
      const at::Tensor tone = at::arange(3 * 48'000, at::kFloat)
                                  .mul(0.04 + 0.01 * static_cast<double>(clip))
                                  .sin()
                                  .mul(0.3)
                                  .expand({2, -1});
      const absl::Status written = write_media(made[clip], pictures(clip), tone.contiguous(), {.frame_rate = 24});
      if (!written.ok()) std::cerr << error_text(written);
      if (!written.ok()) std::abort();
    }
    return made;
  }();
  return paths;
}

void BM_Clips(benchmark::State& state) {
  at::set_num_threads(1);
  clips();
  std::array<MelSpectrogram, 2> mels{
      MelSpectrogram(MelSpectrogramOptions{.hop_length = 160, .n_mels = 64, .log_floor = 1e-6}),
      MelSpectrogram(MelSpectrogramOptions{.hop_length = 160, .n_mels = 64, .log_floor = 1e-6})};
  std::array<int64_t, 2> next{0, kClips / 2};
  const auto piece = [&](int thread) {
    at::set_num_threads(1);
    const MediaFile clip = MediaFile::open(clips()[next[thread]++ % kClips]).value();
    benchmark::DoNotOptimize(clip.spread_frames(8, {.height = 224, .width = 224}).value());
    const at::Tensor sound = clip.samples().value().data.narrow(1, 0, kSamples);
    benchmark::DoNotOptimize(mels[thread]->forward(sound));
    return 1.0;
  };
  const auto two_threads = [&](double duration) { return bench::threaded_rate(2, duration, piece); };
  bench::run_rounds(state, {{"clips", two_threads}}, 3);
}
BENCHMARK(BM_Clips)->UseManualTime()->Iterations(3);

}  // namespace
}  // namespace trainkit
