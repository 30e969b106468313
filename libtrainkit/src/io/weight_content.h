#pragma once
/// What a file of weights is, by its first bytes and not by its name.

#include <string>
#include <string_view>

#include "trainkit/core/fs.h"

namespace trainkit::detail {

enum class WeightContent { kZip, kPickle, kTar, kLfsPointer, kIndex, kOther };

WeightContent weight_content(const ReadableFile& file);

/// A hint for a file that is none of a format's; empty if nothing is known.
std::string content_hint(WeightContent content);

}  // namespace trainkit::detail
