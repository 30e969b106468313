#include "hsi_classification/trained_scene.h"

#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "trainkit/app/stored_values.h"
#include "trainkit/core/data_error.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit::hsi {
namespace {

absl::Status bad_bands(const std::string& path, const std::string& problem, const std::string& got,
                       const std::string& expected, const std::string& hint = "") {
  return data_error("data.bands", {.file = path}, problem, got, expected, hint);
}

/// Half the distance from band `i` to its nearest neighbour.
double tolerance_of(const std::vector<double>& wavelengths, size_t i) {
  double nearest = 1e9;
  for (size_t j = 0; j < wavelengths.size(); ++j) {
    if (j != i) nearest = std::min(nearest, std::abs(wavelengths[j] - wavelengths[i]));
  }
  return std::max(nearest / 2, 0.5);
}

constexpr char kAmbiguous[] =
    "give the cube the bands and the wavelengths of the training scene in its order, or wavelengths with more decimals";

/// Whether two wavelengths differ by the rounding of float32 or of a unit only.
bool is_same_wavelength(double a, double b) { return std::abs(a - b) <= 1e-6 * std::max(std::abs(a), std::abs(b)); }

/// Returns the band of `cube` that is nearest to band `i` of `trained`.
absl::StatusOr<size_t> nearest_band(const std::vector<double>& cube, const std::vector<double>& trained, size_t i,
                                    const std::string& path) {
  const double wanted = trained[i];
  const auto distance = [&](size_t band) { return std::abs(cube[band] - wanted); };
  size_t nearest = 0;
  for (size_t band = 1; band < cube.size(); ++band) {
    if (distance(band) < distance(nearest)) nearest = band;
  }
  if (const double tolerance = tolerance_of(trained, i); distance(nearest) > tolerance) {
    return bad_bands(path, fmt::format("no band at {:.1f} nm, band {} of the training scene", wanted, i + 1),
                     fmt::format("the nearest at {:.1f} nm", cube[nearest]),
                     fmt::format("at most {:.1f} nm away", tolerance));
  }
  for (size_t band = nearest + 1; band < cube.size(); ++band) {
    if (distance(band) - distance(nearest) > 1e-6 * wanted) continue;
    return bad_bands(path,
                     fmt::format("bands {} and {} are equally near to band {} of the training scene at {:g} nm",
                                 nearest + 1, band + 1, i + 1, wanted),
                     fmt::format("{:g} nm and {:g} nm", cube[nearest], cube[band]), "one nearest band", kAmbiguous);
  }
  return nearest;
}

}  // namespace

TrainedScene trained_scene(const Scene& scene, const Preprocessing& preprocessing) {
  return {.preprocessing = preprocessing,
          .label_values = scene.label_values,
          .class_names = scene.class_names,
          .wavelengths = scene.wavelengths};
}

absl::Status save_trained_scene(const std::string& path, const TrainedScene& scene) {
  const Preprocessing& p = scene.preprocessing;
  std::vector<std::pair<int64_t, std::string>> classes;
  for (size_t k = 0; k < scene.label_values.size(); ++k) {
    classes.emplace_back(scene.label_values[k], escape_text(scene.class_names[k]));
  }
  StoredValues values = {{"band.mean", p.bands.mean}, {"band.std", p.bands.std}, {"classes", classes}};
  if (p.pca) {
    values.insert({{"pca.mean", p.pca->mean},
                   {"pca.components", p.pca->components},
                   {"component.mean", p.components.mean},
                   {"component.std", p.components.std}});
  }
  if (!scene.wavelengths.empty()) values["wavelengths"] = at::tensor(scene.wavelengths, at::kDouble);
  return save_values(path, values);
}

absl::StatusOr<TrainedScene> load_trained_scene(const std::string& path) {
  TrainedScene scene;
  Preprocessing& p = scene.preprocessing;
  Pca pca;
  at::Tensor wavelengths;
  std::vector<std::pair<int64_t, std::string>> classes;
  const auto tensor = [](const char* key, at::Tensor& target, const char* shape, const char* group = "") {
    return StoredField{.key = key, .target = &target, .shape = shape, .dtype = at::kDouble, .group = group};
  };
  TRAINKIT_RETURN_IF_ERROR(load_values(path,
                                       {tensor("band.mean", p.bands.mean, "bands"),
                                        tensor("band.std", p.bands.std, "bands"),
                                        tensor("pca.components", pca.components, "components bands", "pca"),
                                        tensor("pca.mean", pca.mean, "bands", "pca"),
                                        tensor("component.mean", p.components.mean, "components", "pca"),
                                        tensor("component.std", p.components.std, "components", "pca"),
                                        tensor("wavelengths", wavelengths, "bands", "wavelengths"),
                                        {"classes", &classes, 2}},
                                       {.exit_code = ExitCode::kWeights,
                                        .id = "weights.scene",
                                        .expected = "the statistics and classes of a training scene"}));
  if (pca.components.defined()) p.pca = std::move(pca);
  if (wavelengths.defined()) {
    const double* const values = wavelengths.const_data_ptr<double>();
    scene.wavelengths.assign(values, values + wavelengths.numel());
  }
  for (auto& [label, name] : classes) {
    scene.label_values.push_back(label);
    scene.class_names.push_back(std::move(name));
  }
  return scene;
}

absl::StatusOr<SelectedBands> select_bands(int64_t bands, const std::vector<double>& wavelengths,
                                           const TrainedScene& trained, const std::string& path) {
  if (wavelengths.empty() || trained.wavelengths.empty()) {
    const char* const lacks = !wavelengths.empty()           ? "the training scene has"
                              : !trained.wavelengths.empty() ? "this cube has"
                                                             : "both have";
    if (bands == trained.bands()) {
      return SelectedBands{{}, fmt::format("bands are matched by number: {} no wavelengths", lacks)};
    }
    return bad_bands(path, "another number of bands than the training scene", std::to_string(bands),
                     std::to_string(trained.bands()),
                     "bands are matched by wavelength only where both files have wavelengths");
  }
  if (std::equal(wavelengths.begin(), wavelengths.end(), trained.wavelengths.begin(), trained.wavelengths.end(),
                 is_same_wavelength)) {
    return SelectedBands{};
  }
  std::vector<int64_t> chosen;
  std::map<size_t, size_t> band_of;  // band of the training scene by chosen band
  for (size_t i = 0; i < trained.wavelengths.size(); ++i) {
    TRAINKIT_ASSIGN_OR_RETURN(const size_t nearest, nearest_band(wavelengths, trained.wavelengths, i, path));
    const auto [other, is_new] = band_of.emplace(nearest, i);
    if (!is_new) {
      return bad_bands(path,
                       fmt::format("band {} at {:g} nm is the nearest of two bands of the training scene", nearest + 1,
                                   wavelengths[nearest]),
                       fmt::format("bands {} at {:g} nm and {} at {:g} nm", other->second + 1,
                                   trained.wavelengths[other->second], i + 1, trained.wavelengths[i]),
                       "a band of its own for each", kAmbiguous);
    }
    chosen.push_back(static_cast<int64_t>(nearest));
  }
  const std::string note = fmt::format("{} of {} bands are matched by wavelength", chosen.size(), bands);
  return SelectedBands{std::move(chosen), note};
}

}  // namespace trainkit::hsi
