#include "media/video_decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

// Note [Decoding only the requested frames]
//
// The result must be bit-identical to decoding the whole stream, so each requested frame starts at a safe key frame.
// first_packet() takes the last key frame before it in decoding order that is also not displayed after it. Frames that
// come after a key frame in decoding order but are displayed before it (leading pictures of an open GOP) may refer to
// frames before the key frame.
//
// Packets between two requested frames are decoded, not skipped, if the second has no later key frame: the decoder
// continues. Only H.264 frames with nal_ref_idc 0 are skipped, as the format guarantees that no frame refers to them.
//
// FFmpeg learns the reordering depth while decoding and drops frames until it knows it. Therefore has_b_frames is set
// from the time stamps in advance (reordered_frames).
//
// If a requested frame is still missing (a wrong key-frame flag, duplicate time stamps) or decoding fails, the whole
// stream is decoded once, and that result decides. Errors of the sink, timeouts and lack of memory are final.

constexpr int kMostReordered = 16;  // frames; limit of H.264 and HEVC

/// Returns the largest number of frames that precede a frame displayed earlier. See Note [Decoding only the requested
/// frames].
int reordered_frames(const MediaStream& stream) {
  const auto& packets = stream.packets;
  int64_t most = 0;
  for (int64_t i = 0; i < std::ssize(packets); ++i) {
    int64_t later = 0;
    for (int64_t j = std::max<int64_t>(0, i - kMostReordered); j < i; ++j) later += packets[j]->pts > packets[i]->pts;
    most = std::max(most, later);
  }
  return static_cast<int>(most);
}

/// An open decoder of the video stream.
class Decoder {
 public:
  static absl::StatusOr<Decoder> open(const MediaSource& source) {
    TRAINKIT_ASSIGN_OR_RETURN(auto context, source.make_decoder(*source.video));
    context->has_b_frames = std::max(context->has_b_frames, source.timed ? reordered_frames(*source.video) : 0);
    source.log.take();
    if (avcodec_open2(context.get(), context->codec, nullptr) < 0) return source.error("video cannot be decoded");
    return Decoder(source, std::move(context));
  }

  /// Decodes packet `number` and passes the resulting frames to `sink`. `may_leave_out` allows skipping a frame that no
  /// frame refers to.
  absl::Status send(int64_t number, bool may_leave_out, const std::function<absl::Status(const AVFrame&)>& sink) {
    const AVPacket* packet = source_->video->packets[number].get();
    const bool can_tell = context_->codec_id == AV_CODEC_ID_H264;  // only its nal_ref_idc of 0 guarantees that
    context_->skip_frame = may_leave_out && can_tell ? AVDISCARD_NONREF : AVDISCARD_DEFAULT;
    if (deadline_.passed()) return source_->timeout_error();
    return feed(packet, sink);
  }

  /// Passes the remaining frames to `sink` and resets the decoder.
  absl::Status finish(const std::function<absl::Status(const AVFrame&)>& sink) {
    absl::Status status = feed(nullptr, sink);
    avcodec_flush_buffers(context_.get());
    return status;
  }

 private:
  Decoder(const MediaSource& source, FfmpegPtr<AVCodecContext> context)
      : source_(&source), context_(std::move(context)), frame_(av_frame_alloc()), deadline_(source.options.timeout) {
    if (!frame_) throw std::bad_alloc();
  }

  absl::Status feed(const AVPacket* packet, const std::function<absl::Status(const AVFrame&)>& sink) {
    TRAINKIT_RETURN_IF_ERROR(check(avcodec_send_packet(context_.get(), packet), packet));
    while (true) {
      const int code = avcodec_receive_frame(context_.get(), frame_.get());
      if (code == AVERROR(EAGAIN) || code == AVERROR_EOF) return absl::OkStatus();
      TRAINKIT_RETURN_IF_ERROR(check(code, packet));
      if (frame_->decode_error_flags || frame_->flags & AV_FRAME_FLAG_CORRUPT) {
        TRAINKIT_RETURN_IF_ERROR(check(AVERROR_INVALIDDATA, packet));
      }
      TRAINKIT_RETURN_IF_ERROR(sink(*frame_));
    }
  }

  absl::Status check(int code, const AVPacket* packet) const {
    if (code >= 0) return absl::OkStatus();
    if (code == AVERROR(ENOMEM)) return source_->limit_error();
    const bool timed = packet && packet->pts != AV_NOPTS_VALUE;
    const std::string at =
        timed ? fmt::format(" at {:.3f} s", static_cast<double>(packet->pts) * av_q2d(source_->video->time_base)) : "";
    return source_->error("video is damaged" + at);
  }

  const MediaSource* source_;
  FfmpegPtr<AVCodecContext> context_;
  FfmpegPtr<AVFrame> frame_;
  Deadline deadline_;
};

/// Returns the key frame at which decoding must begin for the frame of packet `wanted`. See Note [Decoding only the
/// requested frames].
int64_t first_packet(const MediaStream& stream, int64_t wanted) {
  for (int64_t i = wanted; i > 0; --i) {
    const AVPacket& packet = *stream.packets[i];
    if ((packet.flags & AV_PKT_FLAG_KEY) && packet.pts != AV_NOPTS_VALUE && packet.pts <= stream.packets[wanted]->pts) {
      return i;
    }
  }
  return 0;
}

/// Tracks which requested frames were passed to the sink.
class Wanted {
 public:
  Wanted(const MediaSource& source, std::span<const int64_t> wanted) {
    for (const int64_t index : wanted) {
      missing_[source.frames[index].pts] = index;
      packets_.push_back(source.frames[index].packet);
    }
    std::sort(packets_.begin(), packets_.end());
  }
  const std::vector<int64_t>& packets() const { return packets_; }
  bool has(int64_t packet) const { return std::binary_search(packets_.begin(), packets_.end(), packet); }
  bool complete() const { return missing_.empty(); }
  absl::Status take(const AVFrame& frame, const FrameSink& sink) {
    const auto found = missing_.find(frame.pts);
    if (found == missing_.end()) return absl::OkStatus();
    const int64_t index = found->second;
    missing_.erase(found);
    sink_status_ = sink(frame, index);
    return sink_status_;
  }
  /// Last status of the sink. Decoding again would not fix its errors.
  const absl::Status& sink_status() const { return sink_status_; }

 private:
  absl::Status sink_status_;
  std::unordered_map<int64_t, int64_t> missing_;  // time stamp to index of a missing frame
  std::vector<int64_t> packets_;                  // ascending
};

absl::Status decode_requested_frames(const MediaSource& source, Wanted& wanted, const FrameSink& sink,
                                     int64_t& decoded) {
  TRAINKIT_ASSIGN_OR_RETURN(Decoder decoder, Decoder::open(source));
  const auto take = [&](const AVFrame& frame) {
    ++decoded;
    return wanted.take(frame, sink);
  };
  int64_t next = 0;
  for (const int64_t packet : wanted.packets()) {
    if (const int64_t first = first_packet(*source.video, packet); first > next) {
      TRAINKIT_RETURN_IF_ERROR(decoder.finish(take));
      next = first;
    }
    for (; next <= packet; ++next) TRAINKIT_RETURN_IF_ERROR(decoder.send(next, !wanted.has(next), take));
  }
  return decoder.finish(take);
}

}  // namespace

absl::Status decode_all_frames(const MediaSource& source, const FrameSink& sink) {
  TRAINKIT_ASSIGN_OR_RETURN(Decoder decoder, Decoder::open(source));
  int64_t count = 0;
  const auto take = [&](const AVFrame& frame) { return sink(frame, count++); };
  for (int64_t i = 0; i < std::ssize(source.video->packets); ++i) {
    TRAINKIT_RETURN_IF_ERROR(decoder.send(i, false, take));
  }
  return decoder.finish(take);
}

absl::StatusOr<int64_t> decode_frames(const MediaSource& source, std::span<const int64_t> indices,
                                      const FrameSink& sink) {
  Wanted wanted(source, indices);
  int64_t decoded = 0;
  if (source.timed) {
    const absl::Status status = decode_requested_frames(source, wanted, sink, decoded);
    if (status.ok() && wanted.complete()) return decoded;
    TRAINKIT_RETURN_IF_ERROR(wanted.sink_status());
    if (absl::IsResourceExhausted(status) || absl::IsDeadlineExceeded(status)) return status;
  }
  // Wrong key-frame flags or duplicate time stamps: decode the whole stream.
  TRAINKIT_RETURN_IF_ERROR(decode_all_frames(source, [&](const AVFrame& frame, int64_t count) -> absl::Status {
    ++decoded;
    if (source.timed) return wanted.take(frame, sink);
    return std::binary_search(indices.begin(), indices.end(), count) ? sink(frame, count) : absl::OkStatus();
  }));
  if (source.timed && !wanted.complete()) return source.error("a frame is missing from the video");
  return decoded;
}

}  // namespace trainkit::detail
