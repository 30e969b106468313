#pragma once
// Decodes requested frames of a video stream with as little work as possible.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <functional>
#include <span>

#include "media/media_source.h"

namespace trainkit::detail {

/// Receives a decoded frame and its index in MediaSource::frames.
using FrameSink = std::function<absl::Status(const AVFrame& frame, int64_t index)>;

/// Decodes the frames `wanted` (unique, ascending indices into source.frames) and passes each to `sink` once, in any
/// order. Returns the number of decoded frames. Error if a needed frame is damaged or missing. See Note [Decoding only
/// the requested frames].
absl::StatusOr<int64_t> decode_frames(const MediaSource& source, std::span<const int64_t> wanted,
                                      const FrameSink& sink);

/// Decodes the whole stream and passes each frame with its number to `sink`.
absl::Status decode_all_frames(const MediaSource& source, const FrameSink& sink);

}  // namespace trainkit::detail
