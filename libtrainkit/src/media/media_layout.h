#pragma once
// Checks the sizes that a media file claims before FFmpeg reads them.

#include <absl/status/status.h>

#include <cstddef>
#include <span>

namespace trainkit::detail {

/// Detects faults that FFmpeg does not report:
///   outermost parts (boxes of mp4, chunks of RIFF, EBML's segment) that reach past the end of a truncated file
///   sample tables of an mp4 with more samples than the file has bytes, for which FFmpeg would allocate memory
///   boxes nested over 16 levels
/// Accepts formats without such sizes. The error message has the fault and its offset.
absl::Status check_media_layout(std::span<const std::byte> file);

}  // namespace trainkit::detail
