#pragma once
/// Detects the format of a weight file from its first bytes, not from its name.

#include <string>
#include <string_view>

#include "trainkit/core/fs.h"

namespace trainkit::detail {

enum class WeightContent { kZip, kPickle, kTar, kLfsPointer, kIndex, kOther };

WeightContent weight_content(const ReadableFile& file);

/// Whether the file begins as safetensors: the length of a header, and its '{'.
bool looks_like_safetensors(const ReadableFile& file);

/// Returns a hint for a file that was opened as the wrong format. Empty if its content is unknown.
std::string content_hint(WeightContent content);

}  // namespace trainkit::detail
