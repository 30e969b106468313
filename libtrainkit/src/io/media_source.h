#pragma once
// A media file as packets in memory, and the decoders over them.

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

#include "io/ffmpeg.h"
#include "trainkit/io/media.h"

namespace trainkit::detail {

/// The end of a call's time.
class Deadline {
 public:
  explicit Deadline(std::chrono::milliseconds timeout) : end_(std::chrono::steady_clock::now() + timeout) {}
  bool passed() const { return std::chrono::steady_clock::now() >= end_; }

 private:
  std::chrono::steady_clock::time_point end_;
};

/// One stream: what the container says of it, and its packets in the order of decoding.
struct MediaStream {
  int index = 0;
  std::string codec;
  FfmpegPtr<AVCodecParameters> parameters;
  AVRational time_base{1, 1};
  std::optional<std::array<int32_t, 9>> display_matrix;
  std::vector<FfmpegPtr<AVPacket>> packets;
};

/// A frame that the stream shows: when, in units of its time base, and the packet that brings it.
struct FrameEntry {
  int64_t pts = 0;
  int64_t duration = 0;
  int64_t packet = 0;
};

/// What both decoders need.
class MediaSource {
 public:
  /// Reads the whole file. Errors: those of MediaFile::open.
  static absl::StatusOr<std::unique_ptr<MediaSource>> open(const std::string& path, const MediaOptions& options);

  /// `data.media` about this file; what FFmpeg said is added to the problem.
  absl::Status error(const std::string& problem, const std::string& got = "", const std::string& expected = "") const;
  absl::Status too_slow() const;
  /// FFmpeg says that there is no memory: a limit of its own, or the file asks for a block over 256 MiB.
  absl::Status too_large() const { return error("asks for more than is allowed"); }
  /// A decoder of `stream`, opened. Error: its codec is unknown, not allowed or does not take the stream.
  absl::StatusOr<FfmpegPtr<AVCodecContext>> make_decoder(const MediaStream& stream) const;

  std::string path;
  MediaOptions options;
  /// Whether packets of this container say when their frames are shown.
  bool has_pts = true;
  std::optional<MediaStream> video, audio;
  std::optional<VideoStreamMetadata> video_metadata;
  std::optional<AudioStreamMetadata> audio_metadata;
  /// Frames of the video, in the order in which they are shown.
  std::vector<FrameEntry> frames;
  /// Whether the time stamps come from the container. If not, a frame is known by its place in the order of decoding,
  /// and everything is decoded.
  bool timed = true;
  mutable FfmpegLog log;
};

/// What media_demuxer.cpp does: fills video and audio from the file.
absl::Status demux(MediaSource& source);
/// What frame_table.cpp does: fills frames, timed and video_metadata from the packets.
absl::Status list_frames(MediaSource& source);

/// Whether the packet brings a frame that is shown; of the codecs that have other packets, VP8's are told apart.
bool is_shown(const MediaStream& stream, const AVPacket& packet);

absl::StatusOr<FrameBatch> read_frames(const MediaSource& source, std::span<const int64_t> indices,
                                       const FrameOptions& options);
absl::StatusOr<AudioSamples> read_samples(const MediaSource& source, const AudioOptions& options);

/// How a display matrix turns the stored picture: pixel (x, y) that is shown is the stored pixel (x, y), or (y, x) if
/// `transposed`, counted from the other end in x or y of the stored picture if flipped. Angles are taken to the
/// nearest right one.
struct Orientation {
  bool transposed = false;
  bool flip_x = false;
  bool flip_y = false;
  /// Degrees counter-clockwise; mirroring is not told by it.
  int rotation() const;
};
Orientation orientation_of(const std::optional<std::array<int32_t, 9>>& matrix);

}  // namespace trainkit::detail
