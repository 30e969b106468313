#pragma once
/// Writes clips as mp4 files with H.264 and AAC.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>

#include <cstdint>
#include <string>

namespace trainkit {

struct MediaWriterOptions {
  /// Frames per second.
  double frame_rate = 25;
  /// Sample rate of `samples` in Hz; one that AAC supports (8000 to 96000).
  int64_t sample_rate = 48'000;
  /// x264's constant rate factor, 0 (lossless) to 51. The default is x264's.
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
/// kUnimplemented if FFmpeg was built without libx264. Disk errors: exit code 6. Throws c10::ValueError for other
/// shapes, dtypes or options.
absl::Status write_media(const std::string& path, const at::Tensor& frames, const at::Tensor& samples,
                         const MediaWriterOptions& options = {});

}  // namespace trainkit
