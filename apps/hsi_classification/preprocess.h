#pragma once
/// What is done to a cube before anything is learned from it.

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include <cstdint>

namespace trainkit::hsi {

/// Mean and standard deviation of each band over pixels, in float64; shapes (bands).
struct BandStatistics {
  at::Tensor mean;
  at::Tensor std;  ///< 1 for a band that is the same everywhere: it becomes 0 and tells nothing.
};

/// Over all pixels of `cube` (height, width, bands), labelled or not, as the literature does: no label is used, but the
/// spectra of test pixels are. With `pixels` (n) int64, pixel = row * width + column, over those alone.
BandStatistics band_statistics(const at::Tensor& cube, const at::Tensor& pixels = {});

/// (cube - mean) / std, computed in float64; (height, width, bands) float32.
at::Tensor standardise(const at::Tensor& cube, const BandStatistics& statistics);

/// A projection onto the directions of most variance.
struct Pca {
  at::Tensor mean;                ///< (bands) float64.
  at::Tensor components;          ///< (k, bands) float64, orthonormal, most variance first.
  at::Tensor explained_variance;  ///< (k) float64: share of the whole variance.
};

/// The first `k` of the principal components of all pixels of `cube`, 1 <= k <= bands: eigenvectors of the covariance
/// in float64. The sign of each is such that its largest entry is positive, so that runs and machines agree.
Pca fit_pca(const at::Tensor& cube, int64_t k);

/// (height, width, k) float32.
at::Tensor apply_pca(const at::Tensor& cube, const Pca& pca);

/// (H + 2 radius, W + 2 radius, B): `cube` (H, W, B) of any dtype with borders mirrored about the outermost pixels,
/// which are not doubled (numpy.pad's "reflect"), so that every pixel has a whole patch. Any radius >= 0: a mirror
/// image that is too small is mirrored again.
at::Tensor pad_mirrored(const at::Tensor& cube, int64_t radius);

}  // namespace trainkit::hsi
