#include "trainkit/media/media.h"

#include <fcntl.h>
#include <unistd.h>

#include <fstream>
#include <random>
#include <sstream>
#include <thread>

#include "arrays/mat_bytes.h"
#include "media/media_clips.h"
#include "media/media_source.h"
#include "media/video_decoder.h"
#include "test_util.h"

using namespace trainkit;
using test::moving_disc;
using test::tone;

namespace {

std::vector<int64_t> up_to(int64_t count) {
  std::vector<int64_t> all;
  for (int64_t i = 0; i < count; ++i) all.push_back(i);
  return all;
}

/// Number of frames that the decoder decodes for the requested ones.
int64_t decoded_for(const std::string& path, std::vector<int64_t> wanted) {
  const auto source = trainkit::detail::MediaSource::open(path, {});
  REQUIRE(source.status() == absl::OkStatus());
  const auto count =
      trainkit::detail::decode_frames(**source, wanted, [](const AVFrame&, int64_t) { return absl::OkStatus(); });
  REQUIRE(count.status() == absl::OkStatus());
  return *count;
}

/// A WAV file of `channels` (C, T) at 16 kHz, as int16 or float32, with a mask of speaker positions.
std::string wav(const at::Tensor& channels, bool is_float, int64_t mask) {
  const auto count = static_cast<uint32_t>(channels.size(0)), bits = is_float ? 32U : 16U;
  at::Tensor values = channels.t().contiguous();
  if (!is_float) values = values.mul(32767).round().to(at::kShort);
  std::string text;
  const auto put = [&](uint32_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i) & 0xff);
  };
  const auto size = static_cast<uint32_t>(values.nbytes());
  text += "RIFF";
  put(60 + size, 4);
  text += "WAVEfmt ";
  put(40, 4);
  put(0xfffe, 2);  // WAVE_FORMAT_EXTENSIBLE
  put(count, 2);
  put(16'000, 4);
  put(16'000 * count * bits / 8, 4);
  put(count * bits / 8, 2);
  put(bits, 2);
  put(22, 2);
  put(bits, 2);
  put(static_cast<uint32_t>(mask), 4);
  put(is_float ? 3 : 1, 2);
  text += std::string("\x00\x00\x00\x00\x10\x00\x80\x00\x00\xaa\x00\x38\x9b\x71", 14);
  text += "data";
  put(size, 4);
  return text.append(static_cast<const char*>(values.const_data_ptr()), size);
}

/// Captures stderr during its lifetime.
class StderrCapture {
 public:
  explicit StderrCapture(std::string path) : path_(std::move(path)), before_(::dup(2)) {
    const int file = ::open(path_.c_str(), O_CREAT | O_WRONLY, 0600);
    ::dup2(file, 2);
    ::close(file);
  }
  ~StderrCapture() {
    ::dup2(before_, 2);
    ::close(before_);
  }
  std::string text() const { return test::read_bytes(path_); }

 private:
  std::string path_;
  int before_;
};

}  // namespace

TEST_CASE("Individually requested frames have the bits of decoding everything", "[io][media]") {
  const test::TempDir folder;
  const struct {
    const char* name;
    MediaWriterOptions options;
  } rows[] = {{"one key frame", {}},
              {"key frames", {.keyframe_interval = 12}},
              {"many frames that nothing refers to", {.keyframe_interval = 30, .max_b_frames = 7}},
              {"no such frames", {.preset = "ultrafast", .max_b_frames = 0}},
              {"variable", {.frame_rate = 29.97, .preset = "veryslow"}}};
  for (const auto& row : rows) {
    CAPTURE(row.name);
    const std::string path = folder / "clip.mp4";
    REQUIRE(write_media(path, moving_disc(60, 96, 128), {}, row.options) == absl::OkStatus());
    const auto clip = MediaFile::open(path);
    REQUIRE(clip.status() == absl::OkStatus());
    REQUIRE(clip->video()->num_frames == 60);
    const at::Tensor all = clip->frames_at(up_to(60))->data;
    for (int64_t i = 0; i < 60; ++i) CHECK(at::equal(clip->frames_at(std::vector{i})->data[0], all[i]));
    std::mt19937 random(3);
    for (int round = 0; round < 30; ++round) {
      std::vector<int64_t> wanted(1 + random() % 8);
      for (auto& index : wanted) index = static_cast<int64_t>(random() % 60);
      const at::Tensor some = clip->frames_at(wanted)->data;
      for (size_t i = 0; i < wanted.size(); ++i) CHECK(at::equal(some[i], all[wanted[i]]));
    }
  }
}

TEST_CASE("Frames that no requested frame refers to are not decoded", "[io][media]") {
  const test::TempDir folder;
  REQUIRE(write_media(folder / "a.mp4", moving_disc(60, 64, 64), {}, {.max_b_frames = 3}) == absl::OkStatus());
  CHECK(decoded_for(folder / "a.mp4", up_to(60)) == 60);
  CHECK(decoded_for(folder / "a.mp4", {59}) <= 40);
  CHECK(decoded_for(folder / "a.mp4", {0}) == 1);
  REQUIRE(write_media(folder / "b.mp4", moving_disc(60, 64, 64), {}, {.keyframe_interval = 10, .max_b_frames = 0}) ==
          absl::OkStatus());
  CHECK(decoded_for(folder / "b.mp4", {5, 35}) <= 20);  // the frames of two groups of ten
}

TEST_CASE("Spread frames are those shown in the middle of equal parts", "[io][media]") {
  const test::TempDir folder;
  REQUIRE(write_media(folder / "f.mp4", moving_disc(25, 32, 32), {}, {.frame_rate = 25}) == absl::OkStatus());
  const auto clip = MediaFile::open(folder / "f.mp4");
  REQUIRE(clip.status() == absl::OkStatus());
  CHECK(clip->video()->begin_stream_seconds == Approx(0).margin(1e-9));
  CHECK(clip->video()->end_stream_seconds == Approx(1));
  const auto times = [&](int64_t count) { return clip->spread_frames(count)->pts_seconds.mul(25).round(); };
  CHECK(at::equal(times(1), torch::tensor({12.}, at::kDouble)));      // shown at 0.5 s: 0.48 to 0.52
  CHECK(at::equal(times(2), torch::tensor({6., 18.}, at::kDouble)));  // 0.25 s, 0.75 s
  CHECK(at::equal(times(5), torch::tensor({2., 7., 12., 17., 22.}, at::kDouble)));
  CHECK(at::equal(times(25), torch::arange(25, at::kDouble)));
  CHECK(at::equal(times(50), torch::arange(50, at::kDouble).div(2).floor()));  // each twice
  const auto twice = clip->spread_frames(50);
  CHECK(at::equal(twice->data[14], twice->data[15]));
  CHECK(twice->duration_seconds.sub(0.04).abs().max().item<double>() < 1e-9);
  CHECK(twice->data.is_contiguous(at::MemoryFormat::ChannelsLast));
  CHECK_THROWS_AS(clip->spread_frames(0), c10::ValueError);
  CHECK_THROWS_AS(clip->frames_at(std::vector<int64_t>{25}), c10::IndexError);
  CHECK_THROWS_AS(clip->spread_frames(1, {.height = 5}), c10::ValueError);
}

TEST_CASE("A clip with a rotation is turned as a viewer turns it", "[io][media]") {
  const test::TempDir folder;
  const at::Tensor frames = moving_disc(3, 48, 96);
  REQUIRE(write_media(folder / "0.mp4", frames, {}) == absl::OkStatus());
  const at::Tensor upright = MediaFile::open(folder / "0.mp4")->spread_frames(3)->data;
  const at::Tensor small = MediaFile::open(folder / "0.mp4")->spread_frames(3, {.height = 32, .width = 64})->data;
  for (const int turns : {1, 2, 3}) {
    REQUIRE(write_media(folder / "t.mp4", frames, {}, {.rotation = 90 * turns}) == absl::OkStatus());
    const auto clip = MediaFile::open(folder / "t.mp4");
    REQUIRE(clip.status() == absl::OkStatus());
    CHECK(clip->video()->rotation == 90 * turns);
    CHECK(clip->video()->width == (turns == 2 ? 96 : 48));
    CHECK(at::equal(clip->spread_frames(3)->data, at::rot90(upright, turns, {2, 3})));
    const FrameOptions size =
        turns == 2 ? FrameOptions{.height = 32, .width = 64} : FrameOptions{.height = 64, .width = 32};
    CHECK(at::equal(clip->spread_frames(3, size)->data, at::rot90(small, turns, {2, 3})));
  }
}

TEST_CASE("Colours are decoded as they were encoded", "[io][media]") {
  const test::TempDir folder;
  for (const auto& colour : {std::array{255, 255, 255}, std::array{0, 0, 0}, std::array{200, 30, 40},
                             std::array{20, 180, 60}, std::array{30, 40, 220}}) {
    const at::Tensor picture = torch::tensor({colour[0], colour[1], colour[2]}, at::kByte).view({1, 3, 1, 1});
    REQUIRE(write_media(folder / "c.mp4", picture.expand({2, 3, 64, 64}), {}, {.crf = 1}) == absl::OkStatus());
    const at::Tensor back = MediaFile::open(folder / "c.mp4")->spread_frames(1)->data;
    CHECK((back.to(at::kInt) - picture.to(at::kInt)).abs().max().item<int>() <= 4);
  }
}

TEST_CASE("A tone is decoded at its position and resampled", "[io][media]") {
  const test::TempDir folder;
  for (const int64_t rate : {16'000, 44'100, 48'000}) {
    CAPTURE(rate);
    REQUIRE(write_media(folder / "t.mp4", {}, tone(440, rate * 2, rate), {.sample_rate = rate}) == absl::OkStatus());
    const auto clip = MediaFile::open(folder / "t.mp4");
    REQUIRE(clip.status() == absl::OkStatus());
    CHECK_FALSE(clip->video().has_value());
    CHECK(clip->audio()->sample_rate == rate);
    const auto sound = clip->samples();
    REQUIRE(sound.status() == absl::OkStatus());
    CHECK(sound->pts_seconds == Approx(0).margin(1e-9));
    // AAC has blocks of 1024 samples: the last may be padded with silence
    CHECK(sound->data.size(1) >= 32'000);
    CHECK(sound->data.size(1) <= 32'000 + 1024 * 16'000 / rate + 1);
    CHECK(sound->duration_seconds == Approx(static_cast<double>(sound->data.size(1)) / 16'000));
    const at::Tensor apart = (sound->data.narrow(1, 0, 32'000) - tone(440, 32'000, 16'000)).abs();
    CHECK(apart.mean().item<double>() < 0.02);  // AAC's loss; an offset of one sample would be 0.055
  }
}

TEST_CASE("Mono is the mean of all channels, whatever their layout and sample format", "[io][media]") {
  const test::TempDir folder;
  constexpr int64_t kCount = 1600;
  const at::Tensor signal = tone(440, kCount, 16'000) * 2;  // -1 to 1
  const auto mono_of = [&](const at::Tensor& channels, bool is_float, int64_t mask) {
    std::ofstream(folder / "t.wav", std::ios::binary) << wav(channels, is_float, mask);
    const auto sound = MediaFile::open(folder / "t.wav")->samples();
    INFO((sound.ok() ? "" : error_line(sound.status())));
    REQUIRE(sound.ok());
    return sound->data;
  };
  for (const bool is_float : {false, true}) {
    // Channels of the same signal; 0x3f is 5.1, 0x7 is 2.1 by front centre, 0 is unknown.
    for (const auto [channels, mask] : {std::pair(1, 4), {2, 3}, {3, 7}, {6, 0x3f}, {3, 0}, {6, 0}, {10, 0}}) {
      CAPTURE(is_float, channels, mask);
      const at::Tensor mono = mono_of(signal.expand({channels, kCount}), is_float, mask);
      REQUIRE(mono.sizes() == signal.sizes());
      CHECK((mono - signal).abs().max().item<double>() < 1e-4);
      CHECK(mono.abs().max().item<double>() <= 1);
    }
    at::Tensor one = torch::zeros({6, kCount});
    one[3] = signal[0];  // LFE
    CHECK((mono_of(one, is_float, 0x3f) - signal / 6).abs().max().item<double>() < 1e-4);
  }
  // Planar samples: AAC.
  const at::Tensor both = torch::cat({tone(440, 32'000, 16'000), tone(440, 32'000, 16'000)});
  REQUIRE(write_media(folder / "t.mp4", {}, both, {.sample_rate = 16'000}) == absl::OkStatus());
  const auto clip = MediaFile::open(folder / "t.mp4");
  const at::Tensor mean = clip->samples({.num_channels = 0})->data.mean(0, /*keepdim=*/true);
  CHECK((clip->samples()->data - mean).abs().max().item<double>() < 1e-5);
  // Mono in two channels, and 5.1 in two channels.
  std::ofstream(folder / "t.wav", std::ios::binary) << wav(signal, true, 4);
  const at::Tensor two = MediaFile::open(folder / "t.wav")->samples({.num_channels = 2})->data;
  CHECK((two - signal).abs().max().item<double>() < 1e-6);
  std::ofstream(folder / "t.wav", std::ios::binary) << wav(signal.expand({6, kCount}), true, 0x3f);
  CHECK(MediaFile::open(folder / "t.wav")->samples({.num_channels = 2})->data.abs().max().item<double>() <= 1.0001);
}

TEST_CASE("Frames at times are those shown at them, and those of equal parts are the spread ones", "[io][media]") {
  const test::TempDir folder;
  REQUIRE(write_media(folder / "f.mp4", moving_disc(25, 32, 32), {}, {.frame_rate = 25}) == absl::OkStatus());
  const auto clip = MediaFile::open(folder / "f.mp4");
  REQUIRE(clip.status() == absl::OkStatus());
  const std::vector<double> times = {-1, 0, 0.0399, 0.04, 0.5, 0.96, 7};
  const auto shown = clip->frames_played_at(times)->pts_seconds.mul(25).round();
  CHECK(at::equal(shown, torch::tensor({0., 0., 0., 1., 12., 24., 24.}, at::kDouble)));
  for (const int64_t count : {1, 2, 5, 7, 8, 25, 50}) {
    std::vector<double> middles;
    for (int64_t i = 0; i < count; ++i) middles.push_back((static_cast<double>(i) + 0.5) / static_cast<double>(count));
    CHECK(at::equal(clip->frames_played_at(middles)->pts_seconds, clip->spread_frames(count)->pts_seconds));
  }
}

TEST_CASE("Many threads decode concurrently, and a decoder of several threads gives the same", "[io][media]") {
  const test::TempDir folder;
  REQUIRE(write_media(folder / "f.mp4", moving_disc(50, 144, 176), tone(300, 32'000, 16'000),
                      {.sample_rate = 16'000}) == absl::OkStatus());
  const auto read = [&](int threads) {
    const auto clip = MediaFile::open(folder / "f.mp4", {.num_threads = threads});
    return std::pair(clip->spread_frames(9, {.height = 64, .width = 64})->data, clip->samples()->data);
  };
  const auto alone = read(1);
  std::atomic<int> same = 0;
  std::vector<std::thread> crew;
  for (int thread = 0; thread < 6; ++thread) {
    crew.emplace_back([&, thread] {
      for (int round = 0; round < 5; ++round) {
        const auto ours = read(1 + thread % 3);
        same += at::equal(ours.first, alone.first) && at::equal(ours.second, alone.second);
      }
    });
  }
  for (auto& thread : crew) thread.join();
  CHECK(same == 30);
}

TEST_CASE("A clip over a limit is refused with the limit", "[io][media]") {
  const test::TempDir folder;
  REQUIRE(write_media(folder / "f.mp4", moving_disc(50, 64, 64), tone(300, 32'000, 16'000), {.sample_rate = 16'000}) ==
          absl::OkStatus());
  const struct {
    MediaOptions options;
    const char* says;
  } rows[] = {
      {{.max_file_bytes = 1000}, "is too large (got '"},
      {{.max_streams = 1}, "exceeds a limit: Number of streams exceeds max_streams parameter (1)"},
      {{.max_seconds = 1.5}, "is too long (got '2 s', expected at most 2 s)"},
      {{.max_pixels = 4000}, "pictures are too large (got '64 x 64', expected at most 4000 pixels)"},
      {{.formats = {"wav", "matroska"}}, "container is not allowed (got 'mov', expected wav, matroska)"},
      {{.codecs = {"vp9"}}, "codec is not allowed (got 'h264', expected vp9)"},
      {{.video_stream = 1}, "stream 1 of this file is not of type video"},
      {{.audio_stream = 7}, "stream 7 of this file is not of type audio"},
      {{.timeout = std::chrono::milliseconds(-1)}, "error[data.timeout]"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.says);
    const auto clip = MediaFile::open(folder / "f.mp4", row.options);
    const absl::Status status = clip.ok() ? clip->spread_frames(2).status() : clip.status();
    CHECK_THAT(error_line(status), Catch::Contains(row.says) && Catch::Contains("f.mp4"));
  }
  CHECK_THAT(error_line(MediaFile::open(folder / "no.mp4").status()), Catch::Contains("error[data.missing]"));
  CHECK_THAT(error_line(MediaFile::open(folder.path().string()).status()), Catch::Contains("error[data.unreadable]"));
}

TEST_CASE("FFmpeg's messages become the text of an error, not lines on stderr", "[io][media]") {
  const test::TempDir folder;
  REQUIRE(write_media(folder / "f.mp4", moving_disc(20, 64, 64), {}) == absl::OkStatus());
  std::string bytes = test::read_bytes(folder / "f.mp4");
  const size_t mdat = bytes.find("mdat");
  for (size_t at = mdat + 1000; at < mdat + 1400; ++at) bytes[at] = static_cast<char>(at * 37);
  test::write_bytes(folder / "f.mp4", bytes);
  std::string said, line;
  {
    const StderrCapture capture(folder / "err");
    for (const int threads : {1, 3}) {
      const auto clip = MediaFile::open(folder / "f.mp4", {.num_threads = threads});
      const auto frames = clip->spread_frames(20);
      line = error_line(frames.status());
    }
    said = capture.text();
  }
  CHECK(said.empty());
  CHECK_THAT(line, Catch::Contains("f.mp4: video is damaged") && Catch::Contains(": "));
}
