#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "media/media_source.h"
#include "trainkit/core/data_error.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/media/media.h"

namespace trainkit {
namespace detail {

absl::Status MediaSource::error(const std::string& problem, const std::string& got, const std::string& expected) const {
  const std::string said = log.take();
  return data_error("data.media", {.file = path}, said.empty() ? problem : problem + ": " + said, got, expected);
}

absl::Status MediaSource::timeout_error() const {
  return to_status({.exit_code = ExitCode::kStalledWorker,
                    .id = "data.timeout",
                    .where = path,
                    .problem = "decoding took too long",
                    .expected = fmt::format("at most {} ms", options.timeout.count())});
}

absl::StatusOr<FfmpegPtr<AVCodecContext>> MediaSource::make_decoder(const MediaStream& stream) const {
  const AVCodecID id = stream.parameters->codec_id;
  const auto is_allowed = [&](const std::string& name) {
    return name == stream.codec || (name == "pcm" && stream.codec.starts_with("pcm_"));
  };
  if (std::none_of(options.codecs.begin(), options.codecs.end(), is_allowed)) {
    return error("codec is not allowed", stream.codec, fmt::format("{}", fmt::join(options.codecs, ", ")));
  }
  const AVCodec* codec = avcodec_find_decoder(id);
  if (!codec) return error("this FFmpeg has no decoder", stream.codec);
  FfmpegPtr<AVCodecContext> decoder(avcodec_alloc_context3(codec));
  if (!decoder || avcodec_parameters_to_context(decoder.get(), stream.parameters.get()) < 0) {
    return absl::ResourceExhaustedError(path + ": out of memory");
  }
  decoder->opaque = &log;
  decoder->pkt_timebase = stream.time_base;
  decoder->thread_count = codec->type == AVMEDIA_TYPE_VIDEO ? options.num_threads : 1;
  decoder->max_pixels = options.max_pixels;
  if (codec->type == AVMEDIA_TYPE_VIDEO && int64_t{decoder->width} * decoder->height > options.max_pixels) {
    return error("pictures are too large", fmt::format("{} x {}", decoder->width, decoder->height),
                 fmt::format("at most {} pixels", options.max_pixels));
  }
  return decoder;
}

absl::StatusOr<std::unique_ptr<MediaSource>> MediaSource::open(const std::string& path, const MediaOptions& options) {
  TRAINKIT_RETURN_IF_ERROR(load_media_libraries());
  auto source = std::make_unique<MediaSource>();
  source->path = path;
  source->options = options;
  TRAINKIT_RETURN_IF_ERROR(demux(*source));
  if (source->video) TRAINKIT_RETURN_IF_ERROR(list_frames(*source));
  if (source->audio) {
    const AVCodecParameters& sound = *source->audio->parameters;
    source->audio_metadata = {.stream_index = source->audio->index,
                              .codec = source->audio->codec,
                              .sample_rate = sound.sample_rate,
                              .num_channels = sound.ch_layout.nb_channels};
  }
  return source;
}

}  // namespace detail

MediaFile::MediaFile(std::unique_ptr<detail::MediaSource> source) : source_(std::move(source)) {}
MediaFile::MediaFile(MediaFile&&) noexcept = default;
MediaFile& MediaFile::operator=(MediaFile&&) noexcept = default;
MediaFile::~MediaFile() = default;

absl::StatusOr<MediaFile> MediaFile::open(const std::string& path, const MediaOptions& options) try {
  TRAINKIT_ASSIGN_OR_RETURN(auto source, detail::MediaSource::open(path, options));
  return MediaFile(std::move(source));
} catch (...) {
  return annotate(status_from_current_exception(), path);
}

const std::string& MediaFile::path() const { return source_->path; }
const std::optional<VideoStreamMetadata>& MediaFile::video() const { return source_->video_metadata; }
const std::optional<AudioStreamMetadata>& MediaFile::audio() const { return source_->audio_metadata; }

absl::StatusOr<FrameBatch> MediaFile::spread_frames(int64_t count, const FrameOptions& options) const {
  TORCH_CHECK_VALUE(count >= 1, "count must be at least 1, got ", count);
  if (source_->frames.empty()) return source_->error("has no video");
  const auto& frames = source_->frames;
  const __int128 begin = frames.front().pts, length = frames.back().pts + frames.back().duration - begin;
  std::vector<int64_t> indices;
  for (int64_t i = 0, frame = 0; i < count; ++i) {
    // The last frame with a time of at most begin + (i + 1/2) / count * length.
    const auto is_shown = [&](int64_t f) {
      return __int128{2} * count * (frames[f].pts - begin) <= __int128{2 * i + 1} * length;
    };
    while (frame + 1 < std::ssize(frames) && is_shown(frame + 1)) ++frame;
    indices.push_back(frame);
  }
  return frames_at(indices, options);
}

absl::StatusOr<FrameBatch> MediaFile::frames_at(std::span<const int64_t> indices, const FrameOptions& options) const {
  TORCH_CHECK_VALUE((options.height > 0) == (options.width > 0) && options.height >= 0 && options.width >= 0,
                    "height and width are both given or both 0, got ", options.height, " and ", options.width);
  if (source_->frames.empty()) return source_->error("has no video");
  for (const int64_t index : indices) {
    TORCH_CHECK_INDEX(index >= 0 && index < std::ssize(source_->frames), "frame ", index, " of ",
                      source_->frames.size());
  }
  const detail::FfmpegLog::Scope scope(source_->log);
  try {
    return detail::read_frames(*source_, indices, options);
  } catch (...) {
    return annotate(status_from_current_exception(), path());
  }
}

absl::StatusOr<FrameBatch> MediaFile::frames_played_at(std::span<const double> seconds,
                                                       const FrameOptions& options) const {
  if (source_->frames.empty()) return source_->error("has no video");
  constexpr double kRounding = 1e-3;  // of a unit of the time base, for times computed as float64
  const double unit = av_q2d(source_->video->time_base);
  std::vector<int64_t> indices;
  for (const double time : seconds) {
    const auto later = std::upper_bound(
        source_->frames.begin(), source_->frames.end(), time / unit + kRounding,
        [](double ticks, const detail::FrameEntry& frame) { return ticks < static_cast<double>(frame.pts); });
    indices.push_back(std::max<int64_t>(0, later - source_->frames.begin() - 1));
  }
  return frames_at(indices, options);
}

absl::StatusOr<AudioSamples> MediaFile::samples(const AudioOptions& options) const {
  TORCH_CHECK_VALUE(options.sample_rate >= 0 && options.sample_rate <= 768'000 && options.num_channels >= 0 &&
                        options.num_channels <= 64,
                    "sample_rate is 0 to 768000 and num_channels 0 to 64, got ", options.sample_rate, " and ",
                    options.num_channels);
  if (!source_->audio) return source_->error("has no audio");
  const detail::FfmpegLog::Scope scope(source_->log);
  try {
    return detail::read_samples(*source_, options);
  } catch (...) {
    return annotate(status_from_current_exception(), path());
  }
}

absl::Status load_media_libraries() {
  for (auto* library : {&detail::avutil, &detail::swresample, &detail::swscale, &detail::avcodec, &detail::avformat}) {
    TRAINKIT_RETURN_IF_ERROR(library->load());
  }
  return absl::OkStatus();
}

std::string media_libraries() {
  using namespace detail;  // the late functions
  const auto text = [](const char* name, unsigned version) {
    return std::string(name) + " " + std::to_string(AV_VERSION_MAJOR(version)) + "." +
           std::to_string(AV_VERSION_MINOR(version)) + "." + std::to_string(AV_VERSION_MICRO(version));
  };
  return text("libavcodec", avcodec_version()) + ", " + text("libavformat", avformat_version()) + ", " +
         text("libswscale", swscale_version()) + ", " + text("libswresample", swresample_version());
}

}  // namespace trainkit
