#pragma once
/// Options of the hyperspectral trainer. Options shared by all trainers are in trainkit/app/run_options.h.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hsi_classification/models.h"
#include "hsi_classification/scene.h"
#include "hsi_classification/split.h"
#include "trainkit/app/run_options.h"
#include "trainkit/config/config.h"

namespace trainkit::hsi {

/// Values of the trainer's flags. Those of a part are in the part's own options, which parse the rest: see
/// scene_options, split_options and model_options.
struct HsiOptions {
  /// class_names: a single word is a file until resolve_class_names.
  SceneOptions scene = {};
  /// none, or the label of pixels without a class.
  std::string background_class = "0";
  /// Sizes of a generated scene for a dry run without data, see parse_plan_data. Empty: read the data.
  std::string plan_data = {};
  /// Principal components. Unset: the model's default; 0: all bands.
  std::optional<int64_t> pca = {};
  SplitOptions split = {};

  HsiModelOptions net = {};
  /// Unset: the model's default.
  std::optional<int64_t> patch_size = {};
  bool augment = true;
  /// Weight classes by the inverse of their frequency among the training pixels.
  bool class_weights = false;

  // Feeding and results
  /// auto, device or loader.
  std::string feed = "auto";
  int64_t repeats = 1;
  /// Classify the whole scene at the end and draw maps.
  bool write_maps = true;

  /// Effective patch_size and pca.
  int64_t used_patch_size() const { return patch_size.value_or(model_defaults(net.model).patch_size); }
  int64_t used_pca() const { return pca.value_or(model_defaults(net.model).pca); }
};

/// Sets this trainer's defaults in `run`. Call it before add_run_flags.
void set_run_defaults(RunOptions& run);

/// Adds every flag of HsiOptions.
void add_hsi_flags(ConfigParser& parser, HsiOptions& options);

/// Parses --plan_data, HEIGHTxWIDTHxBANDSxCLASSESxPIXELS, where the last are the labelled pixels. Returns nullopt for
/// sizes out of range, also for fewer than ten pixels per class.
std::optional<PlannedSceneOptions> parse_plan_data(const std::string& text);

/// Replaces a single word in `scene.class_names` by the lines of the file of that name. Errors: data.class_names (exit
/// code 4) for a file that cannot be read or has an invalid line.
absl::Status resolve_class_names(HsiOptions& options);

/// Checks rules between flags: an odd patch that is large enough for the model; train_count or train_ratio, not both;
/// several runs resumed only together. Errors name the source of the value.
absl::Status check_hsi_options(const ConfigParser& parser, const RunOptions& run, const HsiOptions& options);

/// `options` have passed check_hsi_options.
SceneOptions scene_options(const HsiOptions& options, const std::string& data_dir);
SplitOptions split_options(const HsiOptions& options, uint64_t seed);
HsiModelOptions model_options(const HsiOptions& options, int64_t bands, int64_t num_classes);

}  // namespace trainkit::hsi
