#pragma once
/// Which labelled pixels are trained on, watched while training, and scored.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <string>

#include "hsi_classification/scene.h"

namespace trainkit::hsi {

/// Pixels of a scene, (n) int64 each, pixel = row * width + column, ascending; no pixel is in two of them.
struct Split {
  at::Tensor train;
  at::Tensor validation;  ///< Taken from what would else be trained on, never from the test pixels. May be empty.
  at::Tensor test;
};

enum class SplitMode {
  kRandom,    ///< Pixels at random within each class. Neighbours of test pixels are trained on: see leak().
  kDisjoint,  ///< Whole blocks of the scene: no training pixel lies in a test block.
  kFile,      ///< As saved by save_split.
};

struct SplitOptions {
  SplitMode mode = SplitMode::kRandom;
  /// Share of each class that is trained on (validation included), in (0, 1). Used unless train_count is set.
  double train_ratio = 0.1;
  /// Pixels of each class that are trained on (validation included); 0: train_ratio says.
  int64_t train_count = 0;
  /// Share of the training pixels of each class that is kept for validation, in [0, 1). Rounded down: a class of few
  /// pixels trains on all of them.
  double validation_share = 0.1;
  /// kDisjoint: side of a block in pixels.
  int64_t block_size = 8;
  /// kFile: what save_split wrote.
  std::string file = {};
  uint64_t seed = 0;
};

/// Splits the labelled pixels of a scene. A function of the labels, the options and the seed alone.
///
/// Rules. Random: of n pixels of a class round(ratio * n) are trained on, or train_count, at least 1 and at most n - 1,
/// so that every class is both trained on and scored. A class of a single pixel is trained on and not scored. Disjoint:
/// blocks are visited in a random order and go to training as long as a class in them lacks training pixels and enough
/// of it is left to test; a class that lies within one block is divided inside it, by rows.
///
/// Errors: exit code 2 (cli.value) for options out of range; 4 (data.split) for a file that does not fit the scene.
absl::StatusOr<Split> make_split(const Scene& scene, const SplitOptions& options);

/// Writes a split as JSON (docs/formats/split.md), atomically.
absl::Status save_split(const std::string& path, const Split& split, int64_t height, int64_t width);

/// Reads it back. data.split (exit code 4) names what is wrong: not JSON, another scene's size, a pixel outside the
/// scene or in two parts, no training or test pixel.
absl::StatusOr<Split> load_split(const std::string& path, int64_t height, int64_t width);

/// Share of the test pixels, in [0, 1], that lie inside the patch_size x patch_size patch around a training pixel:
/// their own spectrum was seen while training. 0 with patch_size 1 or without test pixels. `patch_size` is odd.
double leak(const Split& split, int64_t height, int64_t width, int64_t patch_size);

}  // namespace trainkit::hsi
