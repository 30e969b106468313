#pragma once
// The sizes that a media file claims, checked before FFmpeg reads them.

#include <absl/status/status.h>

#include <cstddef>
#include <span>

namespace trainkit::detail {

/// What FFmpeg does not see: that the outermost parts of a file (boxes of mp4, chunks of RIFF, EBML's segment) reach
/// beyond its end, which is how a file that was cut looks; that the sample tables of an mp4 claim more samples than the
/// file has bytes, which FFmpeg would allocate; boxes nested over 16 levels. Formats without such sizes pass. The
/// message of an error says what and at which offset.
absl::Status check_media_layout(std::span<const std::byte> file);

}  // namespace trainkit::detail
