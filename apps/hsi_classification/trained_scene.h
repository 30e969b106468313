#pragma once
/// Stores the data that a trained model needs to classify another cube, next to its weights.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "hsi_classification/preprocess.h"
#include "hsi_classification/scene.h"

namespace trainkit::hsi {

/// Name of the file in a run's folder.
inline constexpr char kTrainedSceneFile[] = "scene.safetensors";

/// The statistics, classes and bands of a training scene.
struct TrainedScene {
  Preprocessing preprocessing;
  /// As in Scene.
  std::vector<int64_t> label_values;
  std::vector<std::string> class_names;
  std::vector<double> wavelengths;

  int64_t bands() const { return preprocessing.bands.mean.size(0); }
  int64_t num_classes() const { return static_cast<int64_t>(label_values.size()); }
};

TrainedScene trained_scene(const Scene& scene, const Preprocessing& preprocessing);

/// Writes the file: tensors "band.mean", "band.std", with PCA also "pca.mean", "pca.components", "component.mean" and
/// "component.std", and "wavelengths" if they are known, all float64; metadata "classes", a JSON list of [label, name].
/// Errors: exit code 6.
absl::Status save_trained_scene(const std::string& path, const TrainedScene& scene);

/// Reads the file. Errors: those of SafetensorsFile; weights.scene (exit code 5) for other contents.
absl::StatusOr<TrainedScene> load_trained_scene(const std::string& path);

/// The bands of a cube that a model sees.
struct SelectedBands {
  /// In the order of the training scene; empty: all, as they are.
  std::vector<int64_t> bands = {};
  /// How the bands were matched, for the user; empty if the wavelengths are those of the training scene.
  std::string note = {};
};

/// Matches the bands of a cube, `wavelengths` if they are known, with those of the training scene. The same wavelengths
/// in the same order need no search, also if some are equal. Other wavelengths: each band of the training scene gets
/// the nearest band of the cube, at most half a band away. If the cube or the training scene has no wavelengths, bands
/// are matched by number. data.bands (exit code 4) names the number of bands, the first band without a match, two bands
/// that are equally near, or a band that is the nearest of two.
absl::StatusOr<SelectedBands> select_bands(int64_t bands, const std::vector<double>& wavelengths,
                                           const TrainedScene& trained, const std::string& path);

}  // namespace trainkit::hsi
