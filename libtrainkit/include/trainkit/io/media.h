#pragma once
/// Video and audio files: frames by their time stamps, sound at any rate.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace trainkit {

namespace detail {
class MediaSource;
}

/// What is let in, and how much of it. The defaults suit clips of seconds to minutes.
struct MediaOptions {
  /// Containers, by FFmpeg's names; a file is what its bytes are, whatever it is called. `{"mov"}` for mp4 alone.
  std::vector<std::string> formats = {"mov", "matroska", "avi", "wav", "flac", "mp3"};
  /// Codecs, by FFmpeg's names; "pcm" is all of pcm_*.
  std::vector<std::string> codecs = {"h264", "hevc", "vp8",    "vp9",  "mpeg4", "aac",
                                     "mp3",  "opus", "vorbis", "flac", "pcm"};
  /// The stream to read, by its number in the file. By default the video stream with the largest pictures (of equals
  /// the first; covers do not count) and the first audio stream.
  std::optional<int> video_stream = std::nullopt;
  std::optional<int> audio_stream = std::nullopt;
  /// Threads of the video decoder of this file. Loaders read many files at once instead.
  int num_threads = 1;

  int64_t max_file_bytes = int64_t{256} << 20;
  int max_streams = 8;
  /// Width times height of a picture: 4096 x 4096.
  int64_t max_pixels = int64_t{1} << 24;
  /// From the first to the last time stamp.
  double max_seconds = 600;
  /// For each call. Looked at between packets: FFmpeg cannot be interrupted within one.
  std::chrono::milliseconds timeout = std::chrono::seconds(10);
};

struct VideoStreamMetadata {
  int stream_index = 0;
  std::string codec;
  /// As a viewer sees it: after the rotation.
  int64_t width = 0, height = 0;
  /// Degrees counter-clockwise that the file asks for: 0, 90, 180 or 270.
  int rotation = 0;
  int64_t num_frames = 0;
  double begin_stream_seconds = 0;
  /// End of the last frame.
  double end_stream_seconds = 0;
};

struct AudioStreamMetadata {
  int stream_index = 0;
  std::string codec;
  int64_t sample_rate = 0;
  int64_t num_channels = 0;
};

/// Frames in the order that was asked for.
struct FrameBatch {
  /// (N, 3, H, W) uint8, red, green, blue. Laid out as (N, H, W, 3): channels_last, as convolutions like it.
  at::Tensor data;
  /// (N) float64: when each is shown, and for how long.
  at::Tensor pts_seconds, duration_seconds;
};

struct AudioSamples {
  /// (channels, samples) float32, about -1 to 1. Sample i sounds at pts_seconds + i / sample_rate.
  at::Tensor data;
  double pts_seconds = 0;
  double duration_seconds = 0;
  int64_t sample_rate = 0;
};

struct FrameOptions {
  /// Size to scale to, both or none: 0 keeps that of the file. Scaled bilinearly with the filter as wide as the
  /// reduction asks for; the proportions are not kept.
  int64_t height = 0, width = 0;
};

struct AudioOptions {
  /// 0: as in the file.
  int64_t sample_rate = 16'000;
  /// 1 mixes down; 0: as in the file.
  int64_t num_channels = 1;
};

/// A video or audio file, read into memory by open().
///
///   auto clip = MediaFile::open("dia0_utt3.mp4").value();
///   FrameBatch frames = clip.spread_frames(8, {.height = 224, .width = 224}).value();   // (8, 3, 224, 224) uint8
///   AudioSamples sound = clip.samples().value();                                        // (1, samples), 16 kHz
///
/// What the wanted frames do not need is not decoded: each begins at the key frame before it, and frames of H.264 that
/// no other frame refers to are left out. The frames are the bits that decoding everything gives.
///
/// Nothing but the file is opened: no address, playlist or second file that it names. FFmpeg's messages become the text
/// of errors instead of lines on stderr: the first open() sets FFmpeg's log callback (messages of others go to its
/// default one) and the largest block that it may allocate, 256 MiB, for the process. FFmpeg's decoders are C code
/// that parses what strangers made; narrow `formats` and `codecs` to what the data has.
///
/// Errors (exit code 4) name the file: those of MappedFile::open; `data.media`, which says what is wrong or over a
/// limit. A file that was cut is an error, not a shorter clip, wherever its format has a size or a duration. `timeout`:
/// data.timeout (exit code 10). Out of memory: kResourceExhausted.
/// Threads: an object may be used by one thread at a time, any number of objects by as many.
class MediaFile {
 public:
  static absl::StatusOr<MediaFile> open(const std::string& path, const MediaOptions& options = {});
  MediaFile(MediaFile&&) noexcept;
  MediaFile& operator=(MediaFile&&) noexcept;
  ~MediaFile();

  const std::string& path() const;
  /// What the file says; nullopt without such a stream. A stream may still turn out not to be decodable.
  const std::optional<VideoStreamMetadata>& video() const;
  const std::optional<AudioStreamMetadata>& audio() const;

  /// `count` frames spread over the clip: the frames that are shown in the middle of `count` equal parts of it. A clip
  /// of fewer frames repeats some. Error if there is no video. Throws c10::ValueError unless count >= 1.
  absl::StatusOr<FrameBatch> spread_frames(int64_t count, const FrameOptions& options = {}) const;

  /// Frames by number in the order in which they are shown; any order, repetitions allowed. Throws c10::IndexError for
  /// one outside [0, num_frames). num_frames is exact for a stream that can be decoded.
  absl::StatusOr<FrameBatch> frames_at(std::span<const int64_t> indices, const FrameOptions& options = {}) const;

  /// All of the audio stream. Error if there is none, or a sample is not finite. Silence is no error.
  absl::StatusOr<AudioSamples> samples(const AudioOptions& options = {}) const;

 private:
  explicit MediaFile(std::unique_ptr<detail::MediaSource> source);
  std::unique_ptr<detail::MediaSource> source_;
};

/// The libraries that decode, as in "libavcodec 59.37.100, libavformat 59.27.100, libswscale 6.7.100, libswresample
/// 4.7.100": the same file gives the same bits as long as it stays the same.
std::string media_libraries();

}  // namespace trainkit
