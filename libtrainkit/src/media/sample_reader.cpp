// Decodes, mixes and resamples the audio stream.
#include <ATen/Functions.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "media/media_source.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

constexpr int kMostChannels = 64;  // limit of libswresample

/// Collects audio frames, which may change their format, at the requested rate and number of channels.
class Resampler {
 public:
  Resampler(const MediaSource& source, const AudioOptions& options)
      : source_(source), rate_(static_cast<int>(options.sample_rate)), channels_(options.num_channels) {}

  absl::Status add(const AVFrame& frame) {
    if (frame.sample_rate <= 0 || frame.ch_layout.nb_channels <= 0 || frame.ch_layout.nb_channels > kMostChannels) {
      return source_.error("audio format is not supported",
                           fmt::format("{} channels, {} Hz", frame.ch_layout.nb_channels, frame.sample_rate),
                           fmt::format("1 to {} channels", kMostChannels));
    }
    if (!resampler_ || frame.sample_rate != in_rate_ || frame.format != in_format_ ||
        frame.ch_layout.nb_channels != in_channels_) {
      TRAINKIT_RETURN_IF_ERROR(finish());
      TRAINKIT_RETURN_IF_ERROR(start(frame));
    }
    const int64_t room =
        av_rescale_rnd(swr_get_delay(resampler_.get(), in_rate_) + frame.nb_samples, rate_, in_rate_, AV_ROUND_UP) + 32;
    return convert(const_cast<const uint8_t**>(frame.extended_data), frame.nb_samples, room);
  }

  /// Flushes the samples remaining in the filter.
  absl::Status finish() {
    if (!resampler_) return absl::OkStatus();
    const int64_t room = av_rescale_rnd(swr_get_delay(resampler_.get(), in_rate_), rate_, in_rate_, AV_ROUND_UP) + 32;
    return convert(nullptr, 0, room);
  }

  int rate() const { return rate_; }
  double seconds() const { return sound_.empty() || rate_ == 0 ? 0 : static_cast<double>(sound_[0].size()) / rate_; }
  at::Tensor tensor() const {
    const int64_t length = sound_.empty() ? 0 : std::ssize(sound_[0]);
    at::Tensor out = at::empty({std::ssize(sound_), length}, at::kFloat);
    for (int64_t c = 0; c < std::ssize(sound_) && length > 0; ++c) {
      std::memcpy(out.mutable_data_ptr<float>() + c * length, sound_[c].data(), sizeof(float) * length);
    }
    return out;
  }

 private:
  absl::Status start(const AVFrame& frame) {
    in_rate_ = frame.sample_rate;
    in_format_ = frame.format;
    in_channels_ = frame.ch_layout.nb_channels;
    if (rate_ == 0) rate_ = in_rate_;
    if (channels_ == 0) channels_ = in_channels_;
    sound_.resize(static_cast<size_t>(channels_));
    AVChannelLayout in = {}, out = {};
    av_channel_layout_default(&out, static_cast<int>(channels_));
    av_channel_layout_copy(&in, &frame.ch_layout);
    if (in.order == AV_CHANNEL_ORDER_UNSPEC) av_channel_layout_default(&in, in_channels_);
    SwrContext* made = nullptr;
    int code = swr_alloc_set_opts2(&made, &out, AV_SAMPLE_FMT_FLTP, rate_, &in, static_cast<AVSampleFormat>(in_format_),
                                   in_rate_, 0, nullptr);
    resampler_.reset(made);
    if (code >= 0 && channels_ != in_channels_) code = set_mix(made);
    av_channel_layout_uninit(&in);
    av_channel_layout_uninit(&out);
    if (code < 0 || swr_init(made) < 0) {
      return source_.error("audio cannot be resampled", fmt::format("{} channels, {} Hz", in_channels_, in_rate_));
    }
    return absl::OkStatus();
  }

  /// Sets how channels are mixed, see AudioOptions::num_channels.
  int set_mix(SwrContext* made) const {
    // In float32: FFmpeg would mix 16-bit samples as integers.
    const int code = av_opt_set_sample_fmt(made, "internal_sample_fmt", AV_SAMPLE_FMT_FLTP, 0);
    if (code < 0 || (channels_ != 1 && in_channels_ != 1)) {
      return code < 0 ? code : av_opt_set_double(made, "rematrix_maxval", 1, 0);
    }
    auto weight = 1.0F / static_cast<float>(in_channels_);
    if (static_cast<double>(weight) * in_channels_ > 1) weight = std::nextafter(weight, 0.0F);  // rounded up
    const std::vector<double> weights(static_cast<size_t>(channels_ * in_channels_), weight);
    return swr_set_matrix(made, weights.data(), in_channels_);
  }

  absl::Status convert(const uint8_t** in, int samples, int64_t room) {
    const size_t before = sound_[0].size();
    if (static_cast<double>(before) > source_.options.max_seconds * rate_) {
      return source_.error("audio is too long", "", fmt::format("at most {:.0f} s", source_.options.max_seconds));
    }
    std::vector<uint8_t*> ends;
    for (auto& channel : sound_) {
      channel.resize(before + static_cast<size_t>(room));
      ends.push_back(reinterpret_cast<uint8_t*>(channel.data() + before));
    }
    const int got = swr_convert(resampler_.get(), ends.data(), static_cast<int>(room), in, samples);
    for (auto& channel : sound_) channel.resize(before + static_cast<size_t>(std::max(got, 0)));
    return got < 0 ? source_.error("audio cannot be resampled", ffmpeg_error(got)) : absl::OkStatus();
  }

  const MediaSource& source_;
  int rate_;
  int64_t channels_;
  int in_rate_ = 0, in_format_ = -1, in_channels_ = 0;
  FfmpegPtr<SwrContext> resampler_;
  std::vector<std::vector<float>> sound_;
};

absl::Status check_finite(const MediaSource& source, const at::Tensor& sound) {
  const float* values = sound.const_data_ptr<float>();
  for (int64_t i = 0; i < sound.numel(); ++i) {
    if (!std::isfinite(values[i])) {
      return source.error(fmt::format("sample {} is not finite", i % sound.size(1)), fmt::format("{}", values[i]));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<AudioSamples> read_samples(const MediaSource& source, const AudioOptions& options) {
  const MediaStream& stream = *source.audio;
  TRAINKIT_ASSIGN_OR_RETURN(const auto decoder, source.make_decoder(stream));
  source.log.take();
  if (avcodec_open2(decoder.get(), decoder->codec, nullptr) < 0) return source.error("audio cannot be decoded");
  const FfmpegPtr<AVFrame> frame(av_frame_alloc());
  if (!frame) return absl::ResourceExhaustedError(source.path + ": out of memory");
  const Deadline deadline(source.options.timeout);
  Resampler resampler(source, options);
  std::optional<int64_t> begin;
  const auto feed = [&](const AVPacket* packet) -> absl::Status {
    int code = avcodec_send_packet(decoder.get(), packet);
    while (code >= 0 && (code = avcodec_receive_frame(decoder.get(), frame.get())) >= 0) {
      if (!begin) begin = frame->pts == AV_NOPTS_VALUE ? 0 : frame->pts;
      TRAINKIT_RETURN_IF_ERROR(resampler.add(*frame));
    }
    if (code == AVERROR(ENOMEM)) return source.limit_error();
    if (code != AVERROR(EAGAIN) && code != AVERROR_EOF) return source.error("audio is damaged");
    return deadline.passed() ? source.timeout_error() : absl::OkStatus();
  };
  for (const auto& packet : stream.packets) TRAINKIT_RETURN_IF_ERROR(feed(packet.get()));
  TRAINKIT_RETURN_IF_ERROR(feed(nullptr));
  TRAINKIT_RETURN_IF_ERROR(resampler.finish());
  AudioSamples samples{.data = resampler.tensor(),
                       .pts_seconds = static_cast<double>(begin.value_or(0)) * av_q2d(stream.time_base),
                       .duration_seconds = resampler.seconds(),
                       .sample_rate = resampler.rate()};
  if (samples.data.numel() == 0) return source.error("has no sound");
  TRAINKIT_RETURN_IF_ERROR(check_finite(source, samples.data));
  return samples;
}

}  // namespace trainkit::detail
