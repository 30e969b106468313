#pragma once
// The frames of a stream that are wanted, and no more work than they need.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <functional>
#include <span>

#include "io/media_source.h"

namespace trainkit::detail {

/// Called with a decoded frame and its place in MediaSource::frames.
using FrameSink = std::function<absl::Status(const AVFrame& frame, int64_t index)>;

/// Decodes `wanted` (places in source.frames, ascending, each once) and hands each to `sink` once, in any order.
/// Returns how many frames were decoded. Error: a frame that is needed is damaged, or does not come.
absl::StatusOr<int64_t> decode_frames(const MediaSource& source, std::span<const int64_t> wanted,
                                      const FrameSink& sink);

/// Decodes everything and hands over each frame that comes, counted.
absl::Status decode_all_frames(const MediaSource& source, const FrameSink& sink);

}  // namespace trainkit::detail
