#pragma once
/// Preprocessing of a cube: standardisation, PCA, mirrored borders.

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <utility>

namespace trainkit::hsi {

/// Mean and standard deviation of each band over pixels, in float64; shapes (bands).
struct BandStatistics {
  at::Tensor mean;
  at::Tensor std;  ///< 1 for a constant band, which becomes 0.
};

/// Computes the statistics over all pixels of `cube` (height, width, bands), labelled or not, as in the literature: no
/// label is used, but the spectra of test pixels are. With `pixels` (n) int64, pixel = row * width + column, only over
/// those.
BandStatistics band_statistics(const at::Tensor& cube, const at::Tensor& pixels = {});

/// Computes (cube - mean) / std in float64; returns (height, width, bands) float32.
at::Tensor standardise(const at::Tensor& cube, const BandStatistics& statistics);

/// Projection onto the principal components.
struct Pca {
  at::Tensor mean;                ///< (bands) float64.
  at::Tensor components;          ///< (k, bands) float64, orthonormal, by decreasing variance.
  at::Tensor explained_variance;  ///< (k) float64: share of the total variance.
};

/// Computes the first `k` principal components of all pixels of `cube`, 1 <= k <= bands: eigenvectors of the covariance
/// in float64. The largest entry of each is positive, so that runs and machines agree.
Pca fit_pca(const at::Tensor& cube, int64_t k);

/// Projects the cube; returns (height, width, k) float32.
at::Tensor apply_pca(const at::Tensor& cube, const Pca& pca);

/// Statistics of a training scene, with which every cube of the same bands is prepared for its model.
struct Preprocessing {
  BandStatistics bands;
  /// Principal components and the statistics of the projected scene; nullopt without PCA.
  std::optional<Pca> pca = std::nullopt;
  BandStatistics components = {};
};

/// Computes the statistics of `cube`, with `components` principal components (0: no PCA), and prepares it.
std::pair<Preprocessing, at::Tensor> fit_preprocessing(const at::Tensor& cube, int64_t components);

/// Prepares spectra (..., bands): standardises, projects and standardises again. Returns (..., bands or k) float32.
/// Needs float64 copies of all of them.
at::Tensor prepare_spectra(const at::Tensor& spectra, const Preprocessing& preprocessing);

/// prepare_spectra for a cube, a piece at a time. Returns (height, width, bands or k) float32.
at::Tensor apply_preprocessing(const at::Tensor& cube, const Preprocessing& preprocessing);

/// Pads `cube` (H, W, B) of any dtype to (H + 2 radius, W + 2 radius, B), so that every pixel has a whole patch.
/// Mirrors at the outermost pixels without repeating them (numpy.pad's "reflect"). Any radius >= 0: small images are
/// mirrored repeatedly.
at::Tensor pad_mirrored(const at::Tensor& cube, int64_t radius);

}  // namespace trainkit::hsi
