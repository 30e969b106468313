#pragma once
/// Pictures and histograms of a run, and their names.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trainkit/logging/logger.h"

namespace trainkit::detail {

/// Folder in that of a run, and the file of histograms in it.
inline constexpr char kMediaFolder[] = "media", kHistogramFile[] = "histograms.jsonl";

/// The tag and step of a picture's file.
struct MediaName {
  std::string tag;
  int64_t step = 0;
};

/// Returns "<tag>.step-<8 digits>.png". In the tag all but letters, digits, '-' and '_' become %XX.
std::string media_file_name(std::string_view tag, int64_t step);
/// Returns what media_file_name() was given; step -1 for a name that it does not make.
MediaName read_media_name(std::string_view file);

/// Returns LogImage::png, or compresses the pixels.
std::string png_of(const LogImage& image);

/// Returns a JSON line, without the line end, and the reverse; step -1 for a line that is torn.
std::string to_json(const LogHistogram& histogram);
LogHistogram histogram_of(std::string_view line);

/// Returns the file's histograms in order, up to the first line that is torn.
std::vector<LogHistogram> read_histograms(const std::string& path);

}  // namespace trainkit::detail
