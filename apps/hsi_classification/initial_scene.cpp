#include "hsi_classification/initial_scene.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "trainkit/app/app.h"
#include "trainkit/app/initial_weights.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/train/checkpoint.h"

namespace trainkit::hsi {
namespace {

int64_t components_of(const TrainedScene& trained) {
  return trained.preprocessing.pca ? trained.preprocessing.pca->components.size(0) : 0;
}

/// Checks that band i of the scene is band i of the trained one: by wavelength where both have wavelengths.
absl::Status check_bands(const std::string& path, const Scene& scene, const TrainedScene& trained) {
  if (scene.bands() != trained.bands()) {
    return other_meaning(path, "band.mean", "has another number of bands than this scene",
                         std::to_string(trained.bands()), std::to_string(scene.bands()));
  }
  const auto& own = scene.wavelengths;
  const auto& saved = trained.wavelengths;
  for (size_t i = 0; i < own.size() && i < saved.size(); ++i) {
    double step = 0;  // to the nearest other wavelength
    for (const double other : saved) {
      const double distance = std::abs(other - saved[i]);
      if (distance > 0 && (step == 0 || distance < step)) step = distance;
    }
    if (std::abs(own[i] - saved[i]) <= std::max(step / 2, 0.5)) continue;
    return other_meaning(path, "wavelengths", fmt::format("band {} is another one than in this scene", i + 1),
                         fmt::format("{:.1f} nm", saved[i]), fmt::format("{:.1f} nm", own[i]),
                         "give a cube with the bands of that scene, in its order");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::optional<Preprocessing>> earlier_preprocessing(const RunOptions& run, const HsiOptions& options,
                                                                   const Scene& scene) {
  if (!options.plan_data.empty()) return std::nullopt;
  if (!run.resume.empty()) {
    TRAINKIT_ASSIGN_OR_RETURN(const auto path, earlier_file(run, kTrainedSceneFile));
    if (!path) return std::nullopt;
    TRAINKIT_ASSIGN_OR_RETURN(const TrainedScene trained, load_trained_scene(*path));
    // Another scene, or another model, is reported later.
    const bool fits = trained.bands() == scene.bands() && components_of(trained) == options.used_pca();
    return fits ? std::optional(trained.preprocessing) : std::nullopt;
  }
  if (run.init_from.empty()) return std::nullopt;
  TRAINKIT_ASSIGN_OR_RETURN(const RunWeights from, find_initial_weights(run.init_from));
  const std::string path = file_beside(from, kTrainedSceneFile);
  if (path.empty()) return std::nullopt;
  TRAINKIT_ASSIGN_OR_RETURN(const TrainedScene trained, load_trained_scene(path));
  TRAINKIT_RETURN_IF_ERROR(check_bands(path, scene, trained));
  if (components_of(trained) != options.used_pca()) {
    return other_meaning(path, "pca.components", "has another number of principal components than this run",
                         std::to_string(components_of(trained)), std::to_string(options.used_pca()),
                         fmt::format("--pca {}", components_of(trained)));
  }
  return trained.preprocessing;
}

absl::Status adapt_rows(const RunWeights& from, const Scene& scene, const HsiOptions& options, LoadWeightsOptions& load,
                        RunFacts& facts) {
  if (!options.plan_data.empty()) return absl::OkStatus();
  const std::string path = file_beside(from, kTrainedSceneFile);
  if (path.empty()) {
    facts.emplace_back("warning:", fmt::format("no {} next to {}: its bands and classes are taken for those of this "
                                               "scene, in their order, and the pixels are prepared with this scene's "
                                               "own statistics",
                                               kTrainedSceneFile, from.file));
    return absl::OkStatus();
  }
  TRAINKIT_ASSIGN_OR_RETURN(const TrainedScene trained, load_trained_scene(path));
  RowNames classes{.kind = "classes", .in_file = trained.class_names, .tensors = {"out.weight", "out.bias"}};
  for (const std::string& name : scene.class_names) classes.here.push_back(escape_text(name));
  TRAINKIT_RETURN_IF_ERROR(take_rows(from, path, {classes}, load, facts, "--class_names gives the classes names"));
  const bool by_number = scene.wavelengths.empty() || trained.wavelengths.empty();
  facts.emplace_back(
      "", fmt::format("bands by {}, prepared with the statistics of that scene", by_number ? "number" : "wavelength"));
  return absl::OkStatus();
}

}  // namespace trainkit::hsi
