#pragma once
/// Preprocessing of a cube: standardisation, PCA, mirrored borders.

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>

#include "hsi_classification/cube.h"
#include "trainkit/core/fs.h"

namespace trainkit::hsi {

/// Mean and standard deviation of each band over pixels, in float64; shapes (bands).
struct BandStatistics {
  at::Tensor mean;
  at::Tensor std;  ///< 1 for a constant band, which becomes 0.
};

/// Computes the statistics over all pixels of `cube` (height, width, bands), labelled or not, as in the literature: no
/// label is used, but the spectra of test pixels are.
BandStatistics band_statistics(const at::Tensor& cube);

/// Replaces `cube` (height, width, bands) float32 by (cube - mean) / std, computed in float64.
void standardise(const at::Tensor& cube, const BandStatistics& statistics);

/// Projection onto the principal components.
struct Pca {
  at::Tensor mean;                ///< (bands) float64.
  at::Tensor components;          ///< (k, bands) float64, orthonormal, by decreasing variance.
  at::Tensor explained_variance;  ///< (k) float64: share of the total variance.
};

/// Computes the first `k` principal components of all pixels of `cube`, 1 <= k <= bands: eigenvectors of the covariance
/// in float64. The largest entry of each is positive, so that runs and machines agree.
Pca fit_pca(const at::Tensor& cube, int64_t k);

/// Projects the cube into `out`, (height, width, k) float32.
void apply_pca(const at::Tensor& cube, const Pca& pca, const at::Tensor& out);

/// Statistics of a training scene, with which every cube of the same bands is prepared for its model.
struct Preprocessing {
  BandStatistics bands;
  /// Principal components and the statistics of the projected scene; nullopt without PCA.
  std::optional<Pca> pca = std::nullopt;
  BandStatistics components = {};

  /// Number of values per pixel after it.
  int64_t output_bands() const { return (pca ? pca->components : bands.mean).size(0); }
};

/// Prepares spectra (..., bands): standardises, projects and standardises again. Returns (..., bands or k) float32.
/// Needs float64 copies of all of them.
at::Tensor prepare_spectra(const at::Tensor& spectra, const Preprocessing& preprocessing);

/// A prepared scene.
struct PreparedScene {
  Preprocessing preprocessing;
  /// (height + 2 radius, width + 2 radius, bands or k) float32, contiguous: see gather_patches.
  at::Tensor image;
};

/// Prepares a whole cube in the memory of the result, without PCA, and releases the cube. With PCA in that of a cube of
/// float32 and the result. The statistics are those of `earlier` if it is given, else of the cube, with `components`
/// principal components (0: no PCA). Updates `digest` with the cube's float32 values. Errors: those of Cube::rows.
absl::StatusOr<PreparedScene> prepare_scene(Cube& cube, const std::optional<Preprocessing>& earlier, int64_t components,
                                            int64_t radius, Digest& digest);

/// Prepares the rows [begin, end) of a cube, with borders as in PreparedScene::image: returns
/// (end - begin + 2 radius, width + 2 radius, bands or k). The values are those of the whole scene. Reads only the rows
/// that it needs. Errors: those of Cube::rows.
absl::StatusOr<at::Tensor> prepare_strip(const Cube& cube, const Preprocessing& preprocessing, int64_t radius,
                                         int64_t begin, int64_t end);

/// Fills the borders of `image` (H + 2 radius, W + 2 radius, B) of any dtype from its inner part, so that every pixel
/// has a whole patch. Mirrors at the outermost pixels without repeating them (numpy.pad's "reflect"). Any radius >= 0:
/// small images are mirrored repeatedly.
void mirror_borders(const at::Tensor& image, int64_t radius);

}  // namespace trainkit::hsi
