#pragma once
/// Divides the labelled pixels into training, validation and test pixels.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <string>

#include "hsi_classification/scene.h"

namespace trainkit::hsi {

/// Pixels of a scene, (n) int64 each, pixel = row * width + column, ascending. The parts are disjoint.
struct Split {
  at::Tensor train;
  at::Tensor validation;  ///< Taken from the training pixels, never from the test pixels. May be empty.
  at::Tensor test;
};

struct SplitOptions {
  /// "random": random pixels of each class; training pixels are neighbours of test pixels, see leak(). "disjoint":
  /// whole blocks of the scene; no training pixel lies in a test block, except where a class is divided inside a block.
  /// Otherwise: path of a file of save_split.
  std::string mode = "random";
  /// Share of each class for training (including validation), in (0, 1). Used unless train_count is set.
  double train_ratio = 0.1;
  /// Training pixels per class (including validation); 0 uses train_ratio.
  int64_t train_count = 0;
  /// Share of the training pixels of each class for validation, in [0, 1). Rounded down, so that a class with few
  /// pixels trains on all of them.
  double validation_share = 0.1;
  /// "disjoint": side of a block in pixels.
  int64_t block_size = 16;
  uint64_t seed = 0;
};

/// Splits the labelled pixels of a scene. Depends only on the labels, the options and the seed.
///
/// Random: of n pixels of a class round(ratio * n), or train_count, are for training, but at least 1 and at most n - 1,
/// so that every class is trained and scored. A class with a single pixel is trained but not scored. Disjoint: blocks
/// are visited in random order and become training blocks while one of their classes needs training pixels and every
/// class keeps test pixels. A class within one block is divided inside it, by rows.
///
/// Errors: exit code 2 (cli.value) for options out of range; 4 (data.split) for a file that does not fit the scene.
absl::StatusOr<Split> make_split(const Scene& scene, const SplitOptions& options);

/// Name of the split in a run's folder.
inline constexpr char kSplitFile[] = "split.json";

/// Writes a split as JSON (docs/formats/split.md), atomically.
absl::Status save_split(const std::string& path, const Split& split, int64_t height, int64_t width);

/// Reads a file of save_split. data.split (exit code 4) names the problem: invalid JSON, the size of another scene, a
/// pixel outside the scene or in two parts, no training or test pixel.
absl::StatusOr<Split> load_split(const std::string& path, int64_t height, int64_t width);

/// Returns the share of the test pixels, in [0, 1], inside the patch_size x patch_size patch around a training pixel:
/// their spectra were seen in training. 0 with patch_size 1 or without test pixels. `patch_size` is odd.
double leak(const Split& split, int64_t height, int64_t width, int64_t patch_size);

}  // namespace trainkit::hsi
