// Frames and samples compared with torchcodec's and with the reference data of torchcodec's authors.
#include <torch/nn/functional/upsampling.h>

#include "reference_util.h"
#include "test_util.h"
#include "trainkit/io/safetensors.h"
#include "trainkit/io/weight_file.h"
#include "trainkit/media/media.h"

using namespace trainkit;

namespace {

bool has_torchcodec() {
  return !test::python().empty() &&
         std::system((test::python() + " -c 'import torchcodec.decoders' 2> /dev/null").c_str()) == 0;
}

std::string media(const std::string& name) { return test::data_dir() + "/media/" + name; }

/// The share of values that differ by at most two levels.
double share_within_two(const at::Tensor& a, const at::Tensor& b) {
  REQUIRE(a.sizes() == b.sizes());
  return (a.to(at::kInt) - b.to(at::kInt)).abs().le(2).to(at::kDouble).mean().item<double>();
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  REQUIRE(a.sizes() == b.sizes());
  return (a - b).abs().max().item<double>();
}

at::Tensor kept(const std::string& name) {
  const auto file = TorchFile::open(media("decode_reference/" + name));
  REQUIRE(file.status() == absl::OkStatus());
  return file->tensor(file->names()[0]).value();
}

}  // namespace

TEST_CASE("Frames and samples equal those of the decoder that made the references", "[io][media]") {
  if (test::data_dir().empty()) TRAINKIT_SKIP("no TRAINKIT_TEST_DATA");
  const auto clip = MediaFile::open(media("clips/nasa_13013.mp4"), {.audio_stream = 4});
  REQUIRE(clip.status() == absl::OkStatus());
  CHECK(clip->video()->stream_index == 3);  // the larger of two
  CHECK(clip->video()->num_frames == 390);
  const auto frames = clip->frames_at(std::vector<int64_t>{0, 10, 30});
  REQUIRE(frames.status() == absl::OkStatus());
  for (int i = 0; const char* number : {"000000", "000010", "000030"}) {
    const at::Tensor theirs = kept(std::string("nasa_13013.mp4.stream3.frame") + number + ".pt");
    CHECK(share_within_two(frames->data[i++].permute({1, 2, 0}), theirs) >= 0.99);
  }
  const auto file = TorchFile::open(media("decode_reference/nasa_13013.mp4.stream4.all_frames.pt"));
  REQUIRE(file.status() == absl::OkStatus());
  std::vector<at::Tensor> parts;
  for (const auto& name : file->names()) parts.push_back(file->tensor(name).value());
  REQUIRE(parts.size() == 204);
  const auto sound = clip->samples({.sample_rate = 0, .num_channels = 0});
  REQUIRE(sound.status() == absl::OkStatus());
  CHECK(sound->sample_rate == 16'000);
  CHECK(sound->pts_seconds == 0);
  CHECK(largest_difference(sound->data, torch::cat(parts, 1)) <= 1e-3);

  const auto sine = MediaFile::open(media("audio/sine_mono_s16.wav"));
  REQUIRE(sine.status() == absl::OkStatus());
  CHECK(largest_difference(sine->samples()->data, kept("sine_mono_s16.wav.stream0.all_frames.pt")) <= 1e-3);
}

TEST_CASE("Frames and samples of many kinds of files equal torchcodec's", "[io][media]") {
  if (!has_torchcodec() || test::data_dir().empty())
    TRAINKIT_SKIP("no Python with torchcodec, or no TRAINKIT_TEST_DATA");
  const char* const names[] = {"clips/nasa_13013.mp4",
                               "clips/chaplin.mp4",
                               "clips/fire2.mp4",
                               "clips/realshort.mp4",
                               "clips/cockatoo.mp4",
                               "clips/flipping_a_pancake.mkv",
                               "faces/d18.mp4",
                               "faces/s13.mp4",
                               "odd/h265_video.mp4",
                               "odd/nasa_13013_rotated.mp4",
                               "odd/test_non_zero_start.mp4",
                               "odd/testsrc2_odd_height_and_width_444.mp4",
                               "odd/testsrc2_mpeg4.avi",
                               "clips/big_buck_bunny_432_433.webm"};
  for (const std::string name : names) {
    CAPTURE(name);
    const auto clip = MediaFile::open(media(name));
    REQUIRE(clip.status() == absl::OkStatus());
    const int64_t count = clip->video()->num_frames;
    const std::vector<int64_t> indices = {0, count / 3, count / 2, count - 1, 1};
    const test::TempDir folder;
    std::string arguments = media(name) + " " + (folder / "out") + " --frames ";
    for (const int64_t index : indices) arguments += std::to_string(index) + (index == 1 ? "" : ",");
    arguments += " --video " + std::to_string(clip->video()->stream_index);
    if (clip->audio()) arguments += " --audio " + std::to_string(clip->audio()->stream_index);
    test::run_reference("media.py", arguments);
    const auto theirs = SafetensorsFile::open(folder / "out");
    REQUIRE(theirs.status() == absl::OkStatus());
    const auto of = [&](const char* field) { return theirs->tensor(field).value(); };

    CHECK(of("num_frames").item<int64_t>() == count);
    const auto ours = clip->frames_at(indices);
    REQUIRE(ours.status() == absl::OkStatus());
    CHECK(share_within_two(ours->data, of("frames")) >= 0.99);
    CHECK(largest_difference(ours->pts_seconds, of("pts_seconds")) < 1e-6);
    if (!clip->audio()) continue;
    const auto sound = clip->samples({.sample_rate = 0, .num_channels = 0}), mono = clip->samples();
    REQUIRE(sound.status() == absl::OkStatus());
    REQUIRE(mono.status() == absl::OkStatus());
    CHECK(largest_difference(sound->data, of("sound")) <= 1e-3);
    CHECK(largest_difference(mono->data, of("mono")) <= 1e-3);
    CHECK(std::abs(sound->pts_seconds - of("sound_pts").item<double>()) < 1e-6);
  }
}

TEST_CASE("Scaled frames are close to full frames scaled by PyTorch", "[io][media]") {
  if (test::data_dir().empty()) TRAINKIT_SKIP("no TRAINKIT_TEST_DATA");
  for (const char* name : {"clips/chaplin.mp4", "clips/fire2.mp4", "faces/s13.mp4", "odd/nasa_13013_rotated.mp4"}) {
    CAPTURE(name);
    const auto clip = MediaFile::open(media(name));
    REQUIRE(clip.status() == absl::OkStatus());
    const auto full = clip->spread_frames(4), scaled = clip->spread_frames(4, {.height = 224, .width = 160});
    REQUIRE(full.status() == absl::OkStatus());
    REQUIRE(scaled.status() == absl::OkStatus());
    CHECK(scaled->data.sizes() == at::IntArrayRef({4, 3, 224, 160}));
    const auto theirs =
        torch::nn::functional::interpolate(full->data.to(at::kFloat), torch::nn::functional::InterpolateFuncOptions()
                                                                          .size(std::vector<int64_t>{224, 160})
                                                                          .mode(torch::kBilinear)
                                                                          .align_corners(false)
                                                                          .antialias(true));
    const at::Tensor apart = (scaled->data.to(at::kFloat) - theirs).abs();
    CHECK(apart.mean().item<double>() < 2);
    CHECK(apart.le(16).to(at::kFloat).mean().item<double>() > 0.98);
  }
}
