#pragma once
/// The settings that are this trainer's own; those of every trainer are in trainkit/app/run_options.h.

#include <cstdint>
#include <optional>
#include <string>

#include "hsi_classification/models.h"
#include "hsi_classification/scene.h"
#include "hsi_classification/split.h"
#include "trainkit/app/run_options.h"
#include "trainkit/config/config.h"

namespace trainkit::hsi {

/// One member per flag, under the flag's name.
struct HsiOptions {
  // Scene
  std::string scene = "auto";
  std::string cube = {};
  std::string cube_key = {};
  std::string gt = {};
  std::string gt_key = {};
  /// Principal components; unset: what suits the model; 0: all bands.
  std::optional<int64_t> pca = {};

  // Split
  /// random, disjoint, or a file that save_split wrote.
  std::string split = "random";
  double train_ratio = 0.1;
  /// Pixels of each class; 0: train_ratio says.
  int64_t train_count = 0;
  double validation_share = 0.1;
  int64_t block_size = 16;

  // Model
  std::string model = "cnn2d";
  /// Unset: what suits the model.
  std::optional<int64_t> patch_size = {};
  double dropout = 0.4;
  bool augment = true;

  // Feeding and results
  /// auto, device or loader.
  std::string feed = "auto";
  int64_t repeats = 1;
  /// Classify the whole scene at the end and draw it.
  bool write_maps = true;

  /// patch_size and pca as they are used.
  int64_t used_patch_size() const { return patch_size.value_or(model_defaults(model).patch_size); }
  int64_t used_pca() const { return pca.value_or(model_defaults(model).pca); }
};

/// The defaults of `run` that this trainer changes; to be called before add_run_flags.
void set_run_defaults(RunOptions& run);

/// Adds every flag of HsiOptions.
void add_hsi_flags(ConfigParser& parser, HsiOptions& options);

/// Rules between the flags: a patch that is odd and large enough for the model, one way to say how many pixels are
/// trained on, several runs only resumed all together. Errors are blamed on where the value came from.
absl::Status check_hsi_options(const ConfigParser& parser, const RunOptions& run, const HsiOptions& options);

/// The settings of repeat `index`: with several, its own seed (--seed + index) and folder (repeat-1, ...), where it
/// goes on if `run` is resumed and the folder holds a checkpoint.
RunOptions repeat_of(const RunOptions& run, const HsiOptions& options, int64_t index);

SceneOptions scene_options(const HsiOptions& options, const std::string& data_dir);
SplitOptions split_options(const HsiOptions& options, uint64_t seed);
HsiModelOptions model_options(const HsiOptions& options, int64_t bands, int64_t num_classes);

}  // namespace trainkit::hsi
