#pragma once
/// Clips as mp4 files: H.264 and AAC.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>

#include <cstdint>
#include <string>

namespace trainkit {

struct MediaWriterOptions {
  /// Frames a second.
  double frame_rate = 25;
  /// Of the samples: one that AAC knows (8000 to 96000).
  int64_t sample_rate = 48'000;
  /// x264's constant rate factor, 0 (lossless) to 51. Its default.
  int crf = 23;
  /// x264's preset, "ultrafast" to "veryslow".
  std::string preset = "medium";
  /// Most frames from one key frame to the next, and frames that nothing refers to in a row. x264's defaults.
  int keyframe_interval = 250;
  int max_b_frames = 3;
  /// Degrees counter-clockwise that a viewer turns the picture by: 0, 90, 180 or 270.
  int rotation = 0;
};

/// Writes `frames`, (N, 3, height, width) uint8 with even sides, and `samples`, (1 or 2 channels, T) float32 of about
/// -1 to 1, as an mp4; one of the two may be undefined. Atomic (write_file_atomically); the bytes depend on the
/// arguments and on the version of FFmpeg alone. Encodes in the calling thread.
///
///   write_media("clip.mp4", frames, samples, {.frame_rate = 24, .sample_rate = 16000});
///
/// kUnimplemented if this FFmpeg has no libx264. Errors of the disk: exit code 6. Throws c10::ValueError for other
/// shapes, dtypes or options.
absl::Status write_media(const std::string& path, const at::Tensor& frames, const at::Tensor& samples,
                         const MediaWriterOptions& options = {});

}  // namespace trainkit
