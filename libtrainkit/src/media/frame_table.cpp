// Lists the displayed frames of a video stream and their times.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "media/media_source.h"
#include "media/video_decoder.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

constexpr int64_t kFarthest = int64_t{1} << 60;

void list_from_packets(MediaSource& source) {
  const auto& packets = source.video->packets;
  for (int64_t i = 0; i < std::ssize(packets); ++i) {
    const AVPacket& packet = *packets[i];
    if (packet.flags & AV_PKT_FLAG_DISCARD || !is_shown(*source.video, packet)) continue;
    source.frames.push_back({.pts = packet.pts, .duration = packet.duration, .packet = i});
  }
  std::stable_sort(source.frames.begin(), source.frames.end(), [](auto& a, auto& b) { return a.pts < b.pts; });
  const auto same = [](auto& a, auto& b) { return a.pts == b.pts; };
  source.frames.erase(std::unique(source.frames.begin(), source.frames.end(), same), source.frames.end());
}

/// Lists the frames of a container without presentation times by decoding everything.
absl::Status list_by_decoding(MediaSource& source) {
  return decode_all_frames(source, [&](const AVFrame& frame, int64_t count) {
    const auto& frames = source.frames;
    const int64_t after_last = frames.empty() ? 0 : frames.back().pts + std::max<int64_t>(frames.back().duration, 1);
    int64_t pts = frame.best_effort_timestamp;
    if (pts == AV_NOPTS_VALUE || (!frames.empty() && pts <= frames.back().pts)) pts = after_last;
    source.frames.push_back({.pts = pts, .duration = frame_duration(frame), .packet = count});
    return absl::OkStatus();
  });
}

/// Sets the durations: a frame lasts until the next one. The last frame lasts as long as the container says, else as
/// long as the frame before it.
absl::Status set_durations(MediaSource& source) {
  auto& frames = source.frames;
  for (const FrameEntry& frame : frames) {
    if (std::abs(frame.pts) > kFarthest || frame.duration > kFarthest)
      return source.error("time stamps are out of range");
  }
  for (size_t i = 0; i + 1 < frames.size(); ++i) frames[i].duration = frames[i + 1].pts - frames[i].pts;
  if (auto& last = frames.back(); last.duration <= 0) {
    last.duration = frames.size() > 1 ? frames[frames.size() - 2].duration : 1;
  }
  const double seconds = static_cast<double>(frames.back().pts + frames.back().duration - frames.front().pts) *
                         av_q2d(source.video->time_base);
  if (seconds > source.options.max_seconds) {
    return source.error("is too long", fmt::format("{:.0f} s", seconds),
                        fmt::format("at most {:.0f} s", source.options.max_seconds));
  }
  return absl::OkStatus();
}

}  // namespace

bool is_shown(const MediaStream& stream, const AVPacket& packet) {
  constexpr uint8_t kShowFrame = 0x10;  // RFC 6386, 9.1
  return stream.parameters->codec_id != AV_CODEC_ID_VP8 || (packet.data[0] & kShowFrame) != 0;
}

int Orientation::rotation() const {
  if (!transposed) return flip_x && flip_y ? 180 : 0;
  return flip_x == flip_y ? 0 : flip_x ? 90 : 270;
}

Orientation orientation_of(const std::optional<std::array<int32_t, 9>>& matrix) {
  if (!matrix) return {};
  // displayed x = a x + c y, displayed y = b x + d y
  const int64_t a = (*matrix)[0], b = (*matrix)[1], c = (*matrix)[3], d = (*matrix)[4];
  if (std::abs(a) >= std::abs(b)) return {.transposed = false, .flip_x = a < 0, .flip_y = d < 0};
  return {.transposed = true, .flip_x = b < 0, .flip_y = c < 0};
}

absl::Status list_frames(MediaSource& source) {
  const MediaStream& stream = *source.video;
  // AVI stores only the decoding order.
  source.timed = source.has_pts && std::all_of(stream.packets.begin(), stream.packets.end(),
                                               [](auto& packet) { return packet->pts != AV_NOPTS_VALUE; });
  if (source.timed) {
    list_from_packets(source);
  } else {
    const FfmpegLog::Scope scope(source.log);
    TRAINKIT_RETURN_IF_ERROR(list_by_decoding(source));
  }
  if (source.frames.empty()) return source.error("has no frame");
  TRAINKIT_RETURN_IF_ERROR(set_durations(source));
  const Orientation orientation = orientation_of(stream.display_matrix);
  const double unit = av_q2d(stream.time_base);
  const AVCodecParameters& picture = *stream.parameters;
  source.video_metadata = {
      .stream_index = stream.index,
      .codec = stream.codec,
      .width = orientation.transposed ? picture.height : picture.width,
      .height = orientation.transposed ? picture.width : picture.height,
      .rotation = orientation.rotation(),
      .num_frames = std::ssize(source.frames),
      .begin_stream_seconds = static_cast<double>(source.frames.front().pts) * unit,
      .end_stream_seconds = static_cast<double>(source.frames.back().pts + source.frames.back().duration) * unit};
  return absl::OkStatus();
}

}  // namespace trainkit::detail
