#pragma once
/// Reads video frames by time stamp and audio at any sample rate; writes clips as mp4 files.

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

// ---- Reads video frames by time stamp and audio at any sample rate.

namespace detail {
class MediaSource;
}

/// Accepted formats and limits. The defaults suit clips of seconds to minutes.
struct MediaOptions {
  /// Accepted containers, by FFmpeg's names. The content of a file decides, not its name. `{"mov"}` accepts mp4 only.
  std::vector<std::string> formats = {"mov", "matroska", "avi", "wav", "flac", "mp3"};
  /// Accepted codecs, by FFmpeg's names. "pcm" means all of pcm_*.
  std::vector<std::string> codecs = {"h264", "hevc", "vp8",    "vp9",  "mpeg4", "aac",
                                     "mp3",  "opus", "vorbis", "flac", "pcm"};
  /// Index of the stream to read. Default: the video stream with the largest pictures (the first of equals; cover
  /// images do not count) and the first audio stream.
  std::optional<int> video_stream = std::nullopt;
  std::optional<int> audio_stream = std::nullopt;
  /// Threads of this file's video decoder. Data loaders decode many files in parallel instead.
  int num_threads = 1;

  int64_t max_file_bytes = int64_t{256} << 20;
  int max_streams = 8;
  /// Largest picture in pixels, 4096 x 4096 by default.
  int64_t max_pixels = int64_t{1} << 24;
  /// Longest duration, from the first to the last time stamp.
  double max_seconds = 600;
  /// Time limit per call. Checked between packets, because FFmpeg cannot be interrupted within one.
  std::chrono::milliseconds timeout = std::chrono::seconds(10);
};

struct VideoStreamMetadata {
  int stream_index = 0;
  std::string codec;
  /// Size of the displayed picture, after rotation.
  int64_t width = 0, height = 0;
  /// Rotation requested by the file, in degrees counter-clockwise: 0, 90, 180 or 270.
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

/// Frames in the requested order.
struct FrameBatch {
  /// (N, 3, H, W) uint8, RGB, in channels_last memory format.
  at::Tensor data;
  /// (N) float64: presentation time and duration of each frame.
  at::Tensor pts_seconds, duration_seconds;
};

struct AudioSamples {
  /// (channels, samples) float32, about -1 to 1. The time of sample i is pts_seconds + i / sample_rate.
  at::Tensor data;
  double pts_seconds = 0;
  double duration_seconds = 0;
  int64_t sample_rate = 0;
};

struct FrameOptions {
  /// Output size; both 0 keeps the size of the file. Scales bilinearly with antialiasing and does not keep the aspect
  /// ratio.
  int64_t height = 0, width = 0;
};

struct AudioOptions {
  /// Output sample rate in Hz. 0 keeps the rate of the file.
  int64_t sample_rate = 16'000;
  /// Output channels. 0 keeps the channels of the file. 1 is the mean of all channels, LFE included, whatever their
  /// layout, as in torchaudio (`mean(dim=0)`) and librosa (`to_mono`): the same signal in every channel has the same
  /// amplitude in mono. Mono in several channels is copied to each. Other numbers are mixed by FFmpeg's matrix for the
  /// layouts, scaled so that no sample grows beyond 1.
  int64_t num_channels = 1;
};

/// A video or audio file, read into memory by open().
///
///   auto clip = MediaFile::open("dia0_utt3.mp4").value();
///   FrameBatch frames = clip.spread_frames(8, {.height = 224, .width = 224}).value();   // (8, 3, 224, 224) uint8
///   AudioSamples sound = clip.samples().value();                                        // (1, samples), 16 kHz
///
/// Decodes only what the requested frames need: from the key frame before each of them, skipping H.264 frames that no
/// other frame refers to. The result is bit-identical to decoding everything.
///
/// Opens only the file itself, never an address, a playlist or a second file that it names. FFmpeg's messages become
/// part of errors instead of going to stderr. For this, the first open() sets two process-wide options of FFmpeg: the
/// log callback (messages of other users go to FFmpeg's default one) and the largest block that FFmpeg may allocate,
/// 256 MiB.
///
/// FFmpeg's decoders are C code that parses untrusted files: restrict `formats` and `codecs` to those of your data.
///
/// Errors (exit code 4) name the file: those of MappedFile::open; `data.media` for a fault or an exceeded limit. A
/// truncated file is an error, not a shorter clip, if its format stores a size or a duration. `timeout`: data.timeout
/// (exit code 10). Out of memory: kResourceExhausted.
///
/// An object may be used by one thread at a time; separate objects are independent.
class MediaFile {
 public:
  static absl::StatusOr<MediaFile> open(const std::string& path, const MediaOptions& options = {});
  MediaFile(MediaFile&&) noexcept;
  MediaFile& operator=(MediaFile&&) noexcept;
  ~MediaFile();

  const std::string& path() const;
  /// Metadata of the selected stream; nullopt if there is none. The stream may still turn out not to be decodable.
  const std::optional<VideoStreamMetadata>& video() const;
  const std::optional<AudioStreamMetadata>& audio() const;

  /// Reads `count` frames spread over the clip: the frame shown in the middle of each of `count` equal parts. A clip
  /// with fewer frames repeats some. Error if there is no video. Throws c10::ValueError unless count >= 1.
  absl::StatusOr<FrameBatch> spread_frames(int64_t count, const FrameOptions& options = {}) const;

  /// Reads frames by number, in display order from 0. Any order and repetitions are allowed. Throws c10::IndexError for
  /// an index outside [0, num_frames). num_frames is exact for a stream that can be decoded.
  absl::StatusOr<FrameBatch> frames_at(std::span<const int64_t> indices, const FrameOptions& options = {}) const;

  /// Reads the frame shown at each time, in seconds on the file's time line (pts_seconds): the last frame that begins
  /// at or before it. A time before the first frame gives the first one. Error if there is no video.
  absl::StatusOr<FrameBatch> frames_played_at(std::span<const double> seconds, const FrameOptions& options = {}) const;

  /// Reads the whole audio stream. Error if there is none, or if a sample is not finite. Silence is not an error.
  absl::StatusOr<AudioSamples> samples(const AudioOptions& options = {}) const;

 private:
  explicit MediaFile(std::unique_ptr<detail::MediaSource> source);
  std::unique_ptr<detail::MediaSource> source_;
};

/// Loads FFmpeg's libraries, which the first open() or write_media() does otherwise: call it before threads read many
/// files, so that a machine without FFmpeg gives one error instead of one for each file. Thread-safe. Error (exit code
/// 2): program.library, with the packages to install.
absl::Status load_media_libraries();

/// Returns the versions of the decoding libraries, such as "libavcodec 59.37.100, libavformat 59.27.100, libswscale
/// 6.7.100, libswresample 4.7.100". With the same versions, a file gives the same bits.
std::string media_libraries();

// ---- Writes clips as mp4 files with H.264 and AAC.

struct MediaWriterOptions {
  /// Frames per second.
  double frame_rate = 25;
  /// Sample rate of `samples` in Hz; one that AAC supports (8000 to 96000).
  int64_t sample_rate = 48'000;
  /// x264's constant rate factor, 0 (lossless) to 51. The default is x264's. A fifth of it is MPEG-4's quantizer.
  int crf = 23;
  /// x264's preset, "ultrafast" to "veryslow".
  std::string preset = "medium";
  /// Maximum distance between key frames, and maximum number of consecutive B-frames. The defaults are x264's.
  int keyframe_interval = 250;
  int max_b_frames = 3;
  /// Rotation for display, in degrees counter-clockwise: 0, 90, 180 or 270.
  int rotation = 0;
};

/// Writes an mp4 from `frames`, (N, 3, height, width) uint8 with even height and width, and `samples`, (1 or 2
/// channels, T) float32 of about -1 to 1. One of the two may be undefined. Atomic (write_file_atomically). The bytes
/// depend only on the arguments and the version of FFmpeg. Encodes in the calling thread.
///
///   write_media("clip.mp4", frames, samples, {.frame_rate = 24, .sample_rate = 16000});
///
/// The codecs are H.264 and AAC; MPEG-4 and AAC if FFmpeg was built without libx264, as that of our packages. Disk
/// errors: exit code 6. Throws c10::ValueError for other shapes, dtypes or options.
absl::Status write_media(const std::string& path, const at::Tensor& frames, const at::Tensor& samples,
                         const MediaWriterOptions& options = {});

}  // namespace trainkit
