#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <optional>

#include "media/ffmpeg.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/media/media.h"

namespace trainkit {
namespace {

using namespace detail;  // the late functions of FFmpeg

void check_arguments(const at::Tensor& frames, const at::Tensor& samples, const MediaWriterOptions& options) {
  TORCH_CHECK_VALUE(frames.defined() || samples.defined(), "there is neither video nor audio to write");
  if (frames.defined()) {
    TORCH_CHECK_VALUE(
        frames.dim() == 4 && frames.size(1) == 3 && frames.scalar_type() == at::kByte && frames.size(0) > 0,
        "frames are (N, 3, height, width) uint8, got ", frames.sizes(), " ", frames.scalar_type());
    for (const int64_t side : {frames.size(2), frames.size(3)}) {
      TORCH_CHECK_VALUE(side >= 2 && side <= 8192 && side % 2 == 0, "sides are even, 2 to 8192, got ", frames.sizes());
    }
    TORCH_CHECK_VALUE(options.frame_rate >= 1 && options.frame_rate <= 1000, "frame_rate is 1 to 1000, got ",
                      options.frame_rate);
    TORCH_CHECK_VALUE(options.crf >= 0 && options.crf <= 51, "crf is 0 to 51, got ", options.crf);
    TORCH_CHECK_VALUE(options.keyframe_interval >= 1 && options.max_b_frames >= 0 && options.max_b_frames <= 16,
                      "keyframe_interval is at least 1, max_b_frames 0 to 16");
    TORCH_CHECK_VALUE(options.rotation >= 0 && options.rotation < 360 && options.rotation % 90 == 0,
                      "rotation is 0, 90, 180 or 270, got ", options.rotation);
  }
  if (samples.defined()) {
    TORCH_CHECK_VALUE(samples.dim() == 2 && (samples.size(0) == 1 || samples.size(0) == 2) && samples.size(1) > 0 &&
                          samples.scalar_type() == at::kFloat,
                      "samples are (1 or 2, T) float32, got ", samples.sizes(), " ", samples.scalar_type());
    TORCH_CHECK_VALUE(options.sample_rate >= 8000 && options.sample_rate <= 96'000,
                      "sample_rate is 8000 to 96000, got ", options.sample_rate);
  }
}

/// A stream during writing.
struct Track {
  FfmpegPtr<AVCodecContext> encoder;
  FfmpegPtr<AVFrame> frame;
  AVStream* stream = nullptr;
  int64_t next = 0;  // next frame or sample to encode
  double seconds() const { return static_cast<double>(next) * av_q2d(encoder->time_base); }
};

/// Encodes video and audio into one mp4 file in memory.
class Mp4 {
 public:
  explicit Mp4(const MediaWriterOptions& options) : options_(options), scope_(log_) {}
  ~Mp4() {
    if (!format_) return;
    uint8_t* bytes = nullptr;
    if (format_->pb) avio_close_dyn_buf(format_->pb, &bytes);
    av_free(bytes);
    avformat_free_context(format_);
  }
  Mp4(const Mp4&) = delete;
  Mp4& operator=(const Mp4&) = delete;

  absl::Status encode(const at::Tensor& frames, const at::Tensor& samples, std::string& file) {
    TRAINKIT_RETURN_IF_ERROR(check(avformat_alloc_output_context2(&format_, nullptr, "mp4", nullptr)));
    TRAINKIT_RETURN_IF_ERROR(check(avio_open_dyn_buf(&format_->pb)));
    format_->flags |= AVFMT_FLAG_BITEXACT;  // no date, no version
    if (frames.defined()) TRAINKIT_RETURN_IF_ERROR(open_video(frames));
    if (samples.defined()) TRAINKIT_RETURN_IF_ERROR(open_audio(samples));
    TRAINKIT_RETURN_IF_ERROR(check(avformat_write_header(format_, nullptr)));
    TRAINKIT_RETURN_IF_ERROR(encode_both(frames, samples));
    TRAINKIT_RETURN_IF_ERROR(check(av_write_trailer(format_)));
    uint8_t* bytes = nullptr;
    const int size = avio_close_dyn_buf(std::exchange(format_->pb, nullptr), &bytes);
    file.assign(reinterpret_cast<char*>(bytes), static_cast<size_t>(size));
    av_free(bytes);
    return absl::OkStatus();
  }

 private:
  absl::Status check(int code) {
    if (code >= 0) return absl::OkStatus();
    if (code == AVERROR(ENOMEM)) return absl::ResourceExhaustedError("out of memory");
    const std::string said = log_.take();
    return absl::InternalError("encoding failed: " + (said.empty() ? detail::ffmpeg_error(code) : said));
  }

  absl::Status make_track(Track& track, std::initializer_list<const char*> names) {
    const AVCodec* codec = nullptr;
    for (const char* name : names) codec = codec ? codec : avcodec_find_encoder_by_name(name);
    if (!codec) return absl::UnimplementedError(std::string("this FFmpeg has no encoder ") + *names.begin());
    track.encoder.reset(avcodec_alloc_context3(codec));
    track.frame.reset(av_frame_alloc());
    track.stream = avformat_new_stream(format_, nullptr);
    if (!track.encoder || !track.frame || !track.stream) return absl::ResourceExhaustedError("out of memory");
    track.encoder->flags |= AV_CODEC_FLAG_GLOBAL_HEADER | AV_CODEC_FLAG_BITEXACT;
    track.encoder->thread_count = 1;
    return absl::OkStatus();
  }

  absl::Status start_track(Track& track) {
    TRAINKIT_RETURN_IF_ERROR(check(avcodec_open2(track.encoder.get(), track.encoder->codec, nullptr)));
    TRAINKIT_RETURN_IF_ERROR(check(avcodec_parameters_from_context(track.stream->codecpar, track.encoder.get())));
    track.stream->time_base = track.encoder->time_base;
    return absl::OkStatus();
  }

  absl::Status open_video(const at::Tensor& frames) {
    Track& track = video_.emplace();
    TRAINKIT_RETURN_IF_ERROR(make_track(track, {"libx264", "mpeg4"}));
    AVCodecContext& encoder = *track.encoder;
    const bool x264 = encoder.codec_id == AV_CODEC_ID_H264;
    encoder.height = static_cast<int>(frames.size(2));
    encoder.width = static_cast<int>(frames.size(3));
    encoder.pix_fmt = AV_PIX_FMT_YUV420P;
    encoder.colorspace = AVCOL_SPC_SMPTE170M;
    encoder.color_range = AVCOL_RANGE_MPEG;
    encoder.framerate = av_d2q(options_.frame_rate, x264 ? 100'000 : 65'535);  // MPEG-4's largest
    encoder.time_base = av_inv_q(encoder.framerate);
    encoder.gop_size = options_.keyframe_interval;
    encoder.max_b_frames = options_.max_b_frames;
    if (x264) {
      av_opt_set(encoder.priv_data, "preset", options_.preset.c_str(), 0);
      av_opt_set_int(encoder.priv_data, "crf", options_.crf, 0);
    } else {  // a quantizer of 4 looks like x264's default
      encoder.flags |= AV_CODEC_FLAG_QSCALE;
      encoder.global_quality = FF_QP2LAMBDA * std::max(1, options_.crf / 5);
    }
    TRAINKIT_RETURN_IF_ERROR(start_track(track));
    track.stream->avg_frame_rate = encoder.framerate;
    if (options_.rotation != 0) {
      auto* matrix = reinterpret_cast<int32_t*>(
          add_stream_side_data(*track.stream, AV_PKT_DATA_DISPLAYMATRIX, sizeof(int32_t) * 9));
      if (!matrix) return absl::ResourceExhaustedError("out of memory");
      av_display_rotation_set(matrix, -options_.rotation);
    }
    AVFrame& frame = *track.frame;
    frame.format = encoder.pix_fmt;
    frame.width = encoder.width;
    frame.height = encoder.height;
    scaler_.reset(sws_getContext(frame.width, frame.height, AV_PIX_FMT_RGB24, frame.width, frame.height,
                                 encoder.pix_fmt, SWS_BILINEAR, nullptr, nullptr, nullptr));
    if (!scaler_) return absl::ResourceExhaustedError("out of memory");
    return check(av_frame_get_buffer(&frame, 0));
  }

  absl::Status open_audio(const at::Tensor& samples) {
    Track& track = audio_.emplace();
    TRAINKIT_RETURN_IF_ERROR(make_track(track, {"aac"}));
    AVCodecContext& encoder = *track.encoder;
    encoder.sample_fmt = AV_SAMPLE_FMT_FLTP;
    encoder.sample_rate = static_cast<int>(options_.sample_rate);
    encoder.time_base = {1, encoder.sample_rate};
    av_channel_layout_default(&encoder.ch_layout, static_cast<int>(samples.size(0)));
    TRAINKIT_RETURN_IF_ERROR(start_track(track));
    AVFrame& frame = *track.frame;
    frame.format = encoder.sample_fmt;
    frame.sample_rate = encoder.sample_rate;
    frame.nb_samples = encoder.frame_size;
    TRAINKIT_RETURN_IF_ERROR(check(av_channel_layout_copy(&frame.ch_layout, &encoder.ch_layout)));
    return check(av_frame_get_buffer(&frame, 0));
  }

  /// Encodes the track that is behind in time first, so that the file's tracks are interleaved.
  absl::Status encode_both(const at::Tensor& frames, const at::Tensor& samples) {
    const int64_t pictures = video_ ? frames.size(0) : 0, length = audio_ ? samples.size(1) : 0;
    while ((video_ && video_->next < pictures) || (audio_ && audio_->next < length)) {
      const bool picture = video_ && video_->next < pictures &&
                           (!audio_ || audio_->next >= length || video_->seconds() <= audio_->seconds());
      TRAINKIT_RETURN_IF_ERROR(picture ? add_picture(frames) : add_sound(samples));
    }
    for (auto* track : {&video_, &audio_}) {
      if (*track) TRAINKIT_RETURN_IF_ERROR(send(**track, nullptr));
    }
    return absl::OkStatus();
  }

  absl::Status add_picture(const at::Tensor& frames) {
    AVFrame& frame = *video_->frame;
    TRAINKIT_RETURN_IF_ERROR(check(av_frame_make_writable(&frame)));
    const at::Tensor rgb = frames.select(0, video_->next).permute({1, 2, 0}).contiguous();
    const uint8_t* const rows[4] = {rgb.const_data_ptr<uint8_t>(), nullptr, nullptr, nullptr};
    const int strides[4] = {frame.width * 3, 0, 0, 0};
    sws_scale(scaler_.get(), rows, strides, 0, frame.height, frame.data, frame.linesize);
    frame.pts = video_->next++;
    return send(*video_, &frame);
  }

  absl::Status add_sound(const at::Tensor& samples) {
    AVFrame& frame = *audio_->frame;
    TRAINKIT_RETURN_IF_ERROR(check(av_frame_make_writable(&frame)));
    frame.nb_samples = static_cast<int>(std::min<int64_t>(audio_->encoder->frame_size, samples.size(1) - audio_->next));
    for (int64_t channel = 0; channel < samples.size(0); ++channel) {
      std::memcpy(frame.extended_data[channel],
                  samples.const_data_ptr<float>() + channel * samples.size(1) + audio_->next,
                  sizeof(float) * static_cast<size_t>(frame.nb_samples));
    }
    frame.pts = std::exchange(audio_->next, audio_->next + frame.nb_samples);
    return send(*audio_, &frame);
  }

  absl::Status send(Track& track, const AVFrame* frame) {
    TRAINKIT_RETURN_IF_ERROR(check(avcodec_send_frame(track.encoder.get(), frame)));
    const FfmpegPtr<AVPacket> packet(av_packet_alloc());
    if (!packet) return absl::ResourceExhaustedError("out of memory");
    while (true) {
      const int code = avcodec_receive_packet(track.encoder.get(), packet.get());
      if (code == AVERROR(EAGAIN) || code == AVERROR_EOF) return absl::OkStatus();
      TRAINKIT_RETURN_IF_ERROR(check(code));
      packet->stream_index = track.stream->index;
      av_packet_rescale_ts(packet.get(), track.encoder->time_base, track.stream->time_base);
      TRAINKIT_RETURN_IF_ERROR(check(av_interleaved_write_frame(format_, packet.get())));
    }
  }

  const MediaWriterOptions& options_;
  detail::FfmpegLog log_;
  detail::FfmpegLog::Scope scope_;
  AVFormatContext* format_ = nullptr;
  FfmpegPtr<SwsContext> scaler_;
  std::optional<Track> video_, audio_;
};

}  // namespace

absl::Status write_media(const std::string& path, const at::Tensor& frames, const at::Tensor& samples,
                         const MediaWriterOptions& options) {
  check_arguments(frames, samples, options);
  TRAINKIT_RETURN_IF_ERROR(load_media_libraries());
  std::string file;
  const at::Tensor pictures = frames.defined() ? frames.cpu() : frames;
  const at::Tensor sound = samples.defined() ? samples.cpu().contiguous() : samples;
  TRAINKIT_RETURN_IF_ERROR(annotate(Mp4(options).encode(pictures, sound, file), path));
  return write_file_atomically(Fs::posix(), path, file);
}

}  // namespace trainkit
