#pragma once
// Holds a media file as packets in memory, and declares its demuxer and decoders.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "media/ffmpeg.h"
#include "trainkit/media/media.h"

namespace trainkit::detail {

/// The deadline of a call.
class Deadline {
 public:
  explicit Deadline(std::chrono::milliseconds timeout) : end_(std::chrono::steady_clock::now() + timeout) {}
  bool passed() const { return std::chrono::steady_clock::now() >= end_; }

 private:
  std::chrono::steady_clock::time_point end_;
};

/// A stream: its description in the container, and its packets in decoding order.
struct MediaStream {
  int index = 0;
  std::string codec;
  FfmpegPtr<AVCodecParameters> parameters;
  AVRational time_base{1, 1};
  std::optional<std::array<int32_t, 9>> display_matrix;
  std::vector<FfmpegPtr<AVPacket>> packets;
};

/// A displayed frame: presentation time and duration in units of the stream's time base, and the index of its packet.
struct FrameEntry {
  int64_t pts = 0;
  int64_t duration = 0;
  int64_t packet = 0;
};

/// State shared by the video and the audio decoder.
class MediaSource {
 public:
  /// Reads the whole file. Errors: those of MediaFile::open.
  static absl::StatusOr<std::unique_ptr<MediaSource>> open(const std::string& path, const MediaOptions& options);

  /// Returns `data.media` for this file. Appends FFmpeg's message to the problem.
  absl::Status error(const std::string& problem, const std::string& got = "", const std::string& expected = "") const;
  absl::Status timeout_error() const;
  /// Error for FFmpeg's ENOMEM: one of FFmpeg's limits, or a block over 256 MiB.
  absl::Status limit_error() const { return error("exceeds a limit"); }
  /// Creates a decoder for `stream`. Error if its codec is unknown, not allowed, or rejects the stream.
  absl::StatusOr<FfmpegPtr<AVCodecContext>> make_decoder(const MediaStream& stream) const;

  std::string path;
  MediaOptions options;
  /// Whether packets of this container have presentation times.
  bool has_pts = true;
  std::optional<MediaStream> video, audio;
  std::optional<VideoStreamMetadata> video_metadata;
  std::optional<AudioStreamMetadata> audio_metadata;
  /// Video frames in display order.
  std::vector<FrameEntry> frames;
  /// Whether the time stamps come from the container. If not, a frame is identified by its position in decoding order,
  /// and everything is decoded.
  bool timed = true;
  mutable FfmpegLog log;
};

/// Fills video and audio from the file (media_demuxer.cpp).
absl::Status demux(MediaSource& source);
/// Fills frames, timed and video_metadata from the packets (frame_table.cpp).
absl::Status list_frames(MediaSource& source);

/// Whether the packet contains a displayed frame. Checked only for VP8, which has invisible frames; true for other
/// codecs.
bool is_shown(const MediaStream& stream, const AVPacket& packet);

absl::StatusOr<FrameBatch> read_frames(const MediaSource& source, std::span<const int64_t> indices,
                                       const FrameOptions& options);
absl::StatusOr<AudioSamples> read_samples(const MediaSource& source, const AudioOptions& options);

/// Orientation of the stored picture given by a display matrix. The displayed pixel (x, y) is the stored pixel (x, y),
/// or (y, x) if `transposed`. flip_x and flip_y count from the other end of the stored picture. Angles are rounded to
/// the nearest right angle.
struct Orientation {
  bool transposed = false;
  bool flip_x = false;
  bool flip_y = false;
  /// Rotation in degrees counter-clockwise, ignoring mirroring.
  int rotation() const;
};
Orientation orientation_of(const std::optional<std::array<int32_t, 9>>& matrix);

}  // namespace trainkit::detail
