#pragma once
/// What a cache of decoded clips depends on (--cache_dir).

#include <memory>
#include <string>
#include <vector>

#include "emotion_recognition/clip_dataset.h"
#include "trainkit/core/error.h"
#include "trainkit/data/row_cache.h"

namespace trainkit::emotion {

/// Returns a text with everything that the rows of `clips` depend on: paths, sizes, modification times, labels,
/// decoding options, and the versions of the decoding libraries.
std::string origin_of(const ClipDataset& clips);

/// A split.
struct ClipPart {
  std::string name;
  std::shared_ptr<const ClipDataset> clips;
};

/// The caches of `parts`: a folder for each choice of table, clips and options.
std::vector<RowCachePart> to_cache(const std::vector<ClipPart>& parts);

/// Whether an error is a lasting property of a clip: damaged or missing, not a timeout or a permission.
bool is_lasting(const Error& error);

}  // namespace trainkit::emotion
