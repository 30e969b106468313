// Streams that change midway and time stamps of real and hostile files, packed by FFmpeg's own muxer.
#include <cmath>
#include <numeric>

extern "C" {
#include <libavcodec/bsf.h>
}

#include "arrays/mat_bytes.h"
#include "media/ffmpeg.h"
#include "media/media_clips.h"
#include "test_util.h"
#include "trainkit/core/error.h"
#include "trainkit/media/media.h"

using namespace trainkit;
using trainkit::detail::FfmpegPtr;

namespace {

using Packets = std::vector<FfmpegPtr<AVPacket>>;

/// A video stream extracted from its file.
struct Stream {
  FfmpegPtr<AVCodecParameters> parameters;
  AVRational time_base{};
  Packets packets;
};

/// A disc as H.264 with parameter sets in its packets, so that streams can be concatenated.
Stream disc(int64_t count, int64_t height, int64_t width, int b_frames = 0) {
  const test::TempDir folder;
  const std::string path = folder / "f.mp4";
  REQUIRE(write_media(path, test::moving_disc(count, height, width), {},
                      {.frame_rate = 10, .keyframe_interval = 5, .max_b_frames = b_frames}) == absl::OkStatus());
  AVFormatContext* input = nullptr;
  REQUIRE(avformat_open_input(&input, path.c_str(), nullptr, nullptr) == 0);
  AVBSFContext* filter = nullptr;
  REQUIRE(av_bsf_alloc(av_bsf_get_by_name("h264_mp4toannexb"), &filter) == 0);
  REQUIRE(avcodec_parameters_copy(filter->par_in, input->streams[0]->codecpar) >= 0);
  REQUIRE(av_bsf_init(filter) == 0);
  Stream out;
  out.time_base = input->streams[0]->time_base;
  out.parameters.reset(avcodec_parameters_alloc());
  REQUIRE(avcodec_parameters_copy(out.parameters.get(), filter->par_out) >= 0);
  for (FfmpegPtr<AVPacket> packet(av_packet_alloc()); av_read_frame(input, packet.get()) >= 0;) {
    REQUIRE(av_bsf_send_packet(filter, packet.get()) == 0);
    auto& filtered = out.packets.emplace_back(av_packet_alloc());
    REQUIRE(av_bsf_receive_packet(filter, filtered.get()) == 0);
  }
  av_bsf_free(&filter);
  avformat_close_input(&input);
  REQUIRE(std::ssize(out.packets) == count);
  return out;
}

struct Muxing {
  const char* format = "mp4";
  int streams = 1;  // the others stay empty
  bool move_first_to_zero = false;
};

/// Writes the packets unchanged.
void mux(const std::string& path, const Stream& stream, const Muxing& muxing = {}) {
  AVFormatContext* output = nullptr;
  REQUIRE(avformat_alloc_output_context2(&output, nullptr, muxing.format, nullptr) >= 0);
  REQUIRE(avio_open(&output->pb, path.c_str(), AVIO_FLAG_WRITE) >= 0);
  if (!muxing.move_first_to_zero) output->avoid_negative_ts = 0;
  for (int i = 0; i < muxing.streams; ++i) {
    AVStream* out = avformat_new_stream(output, nullptr);
    REQUIRE(avcodec_parameters_copy(out->codecpar, stream.parameters.get()) >= 0);
    out->codecpar->codec_tag = 0;
    out->time_base = stream.time_base;
  }
  REQUIRE(avformat_write_header(output, nullptr) >= 0);
  for (const auto& packet : stream.packets) {
    const FfmpegPtr<AVPacket> copy(av_packet_clone(packet.get()));
    copy->stream_index = 0;
    av_packet_rescale_ts(copy.get(), stream.time_base, output->streams[0]->time_base);
    REQUIRE(av_write_frame(output, copy.get()) >= 0);
  }
  REQUIRE(av_write_trailer(output) == 0);
  REQUIRE(avio_closep(&output->pb) >= 0);
  avformat_free_context(output);
}

void shift(Stream& stream, int64_t ticks) {
  for (const auto& packet : stream.packets) {
    packet->pts += ticks;
    packet->dts += ticks;
  }
}

}  // namespace

TEST_CASE("Frames that change their size are scaled to the requested size, or are an error at the original size",
          "[io][media]") {
  const test::TempDir folder;
  Stream both = disc(10, 48, 64);
  Stream second = disc(10, 96, 80);
  shift(second, av_rescale_q(1, {1, 1}, second.time_base));
  for (auto& packet : second.packets) both.packets.push_back(std::move(packet));
  mux(folder / "f.mp4", both);
  const auto clip = MediaFile::open(folder / "f.mp4");
  REQUIRE(clip.status() == absl::OkStatus());
  REQUIRE(clip->video()->num_frames == 20);
  const std::vector<int64_t> ends = {0, 19};
  CHECK_THAT(error_line(clip->frames_at(ends).status()), Catch::Contains("pictures change their size (got '80 x 96'"));
  const auto scaled = clip->frames_at(ends, {.height = 48, .width = 64});
  REQUIRE(scaled.status() == absl::OkStatus());
  const at::Tensor as_drawn = test::moving_disc(10, 48, 64)[9].to(at::kFloat);
  CHECK((scaled->data[1].to(at::kFloat) - as_drawn).abs().mean().item<double>() < 12);
}

TEST_CASE("Time stamps below zero, far away or beyond 32 bits keep the frames and their distances", "[io][media]") {
  const test::TempDir folder;
  for (const int b_frames : {0, 2}) {
    for (const int64_t seconds : {int64_t{-3}, int64_t{1'000'000}, int64_t{1} << 31}) {
      CAPTURE(b_frames, seconds);
      Stream stream = disc(12, 48, 64, b_frames);
      shift(stream, av_rescale_q(seconds, {1, 1}, stream.time_base));
      mux(folder / "f.mkv", stream, {.format = "matroska", .move_first_to_zero = seconds < 0});
      const auto clip = MediaFile::open(folder / "f.mkv");
      REQUIRE(clip.status() == absl::OkStatus());
      const auto frames = clip->spread_frames(12);
      REQUIRE(frames.status() == absl::OkStatus());
      CHECK(clip->video()->num_frames == 12);
      const at::Tensor steps = frames->pts_seconds.diff();
      CHECK(steps.min().item<double>() == Approx(0.1).margin(0.002));
      CHECK(steps.max().item<double>() == Approx(0.1).margin(0.002));
      CHECK((frames->data.to(at::kFloat) - test::moving_disc(12, 48, 64).to(at::kFloat)).abs().mean().item<double>() <
            12);
    }
  }
}

TEST_CASE("A million frames per second is a short clip", "[io][media]") {
  const test::TempDir folder;
  Stream stream = disc(12, 48, 64);
  stream.time_base = {1, 1'000'000};
  for (size_t i = 0; i < 12; ++i) {
    stream.packets[i]->pts = stream.packets[i]->dts = static_cast<int64_t>(i);
    stream.packets[i]->duration = 1;
  }
  mux(folder / "f.mp4", stream);
  const auto clip = MediaFile::open(folder / "f.mp4");
  REQUIRE(clip.status() == absl::OkStatus());
  CHECK(clip->video()->num_frames == 12);
  CHECK(clip->video()->end_stream_seconds - clip->video()->begin_stream_seconds < 0.001);
  const auto frames = clip->spread_frames(3);
  REQUIRE(frames.status() == absl::OkStatus());
  CHECK(frames->pts_seconds.diff().min().item<double>() > 0);
}

TEST_CASE("Frames without a time stamp equal those of decoding everything", "[io][media]") {
  const test::TempDir folder;
  mux(folder / "f.avi", disc(12, 48, 64), {.format = "avi"});
  const auto clip = MediaFile::open(folder / "f.avi");
  REQUIRE(clip.status() == absl::OkStatus());
  REQUIRE(clip->video()->num_frames == 12);
  std::vector<int64_t> every(12);
  std::iota(every.begin(), every.end(), 0);
  const auto frames = clip->frames_at(every);
  REQUIRE(frames.status() == absl::OkStatus());
  CHECK((frames->pts_seconds.diff() > 0).all().item<bool>());
  CHECK((frames->data.to(at::kFloat) - test::moving_disc(12, 48, 64).to(at::kFloat)).abs().mean().item<double>() < 12);
}

TEST_CASE("A video that begins inside a group of pictures has no frame before its first key frame", "[io][media]") {
  const test::TempDir folder;
  Stream stream = disc(15, 48, 64);
  stream.packets.erase(stream.packets.begin());
  mux(folder / "f.mp4", stream);
  const auto clip = MediaFile::open(folder / "f.mp4");
  REQUIRE(clip.status() == absl::OkStatus());
  const std::vector<int64_t> first = {0};
  const std::vector<int64_t> after_key = {clip->video()->num_frames - 1};
  CHECK_THAT(error_line(clip->frames_at(first).status()), Catch::Contains("error[data.media]"));
  CHECK(clip->frames_at(after_key).status() == absl::OkStatus());
}

TEST_CASE("A thousand streams are refused", "[io][media]") {
  const test::TempDir folder;
  mux(folder / "f.mkv", disc(5, 48, 64), {.format = "matroska", .streams = 1000});
  CHECK_THAT(error_line(MediaFile::open(folder / "f.mkv").status()), Catch::Contains("streams"));
}

TEST_CASE("Time stamps that run backwards give an error or the frames in order, never a hang", "[io][media]") {
  const test::TempDir folder;
  Stream stream = disc(12, 48, 64);
  mux(folder / "f.mp4", stream);
  std::string bytes = test::read_bytes(folder / "f.mp4");
  // The table of durations has one run of 12 equal steps; a negative step makes the time run backwards.
  const size_t table = bytes.find("stts");
  REQUIRE(table != std::string::npos);
  bytes.replace(table + 16, 4, std::string("\xff\xff\xff\x38", 4));
  test::write_bytes(folder / "f.mp4", bytes);
  const auto clip = MediaFile::open(folder / "f.mp4");
  if (clip.ok()) {
    const auto frames = clip->spread_frames(4, {.height = 32, .width = 32});
    if (frames.ok()) {
      CHECK((frames->pts_seconds.diff() >= 0).all().item<bool>());
    } else {
      CHECK_THAT(error_line(frames.status()), Catch::Contains("error[data.media]"));
    }
  } else {
    CHECK_THAT(error_line(clip.status()), Catch::Contains("error[data.media]"));
  }
}
