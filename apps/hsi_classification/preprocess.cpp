#include "hsi_classification/preprocess.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace trainkit::hsi {
namespace {

// Pixels per piece. A float64 copy of a whole scene would be larger than the scene.
constexpr int64_t kPiece = 16'384;

void check_cube(const at::Tensor& cube) {
  TORCH_CHECK_VALUE(cube.dim() == 3 && cube.numel() > 0, "cube must be (height, width, bands), got ", cube.sizes());
}

/// Returns (pixels, bands): the given pixels, or all.
at::Tensor spectra(const at::Tensor& cube, const at::Tensor& pixels) {
  const at::Tensor all = cube.reshape({-1, cube.size(2)});
  return pixels.defined() ? all.index_select(0, pixels.to(cube.device())) : all;
}

template <class Visit>
void for_pieces(const at::Tensor& rows, const Visit& visit) {
  for (int64_t begin = 0; begin < rows.size(0); begin += kPiece) {
    const int64_t count = std::min(kPiece, rows.size(0) - begin);
    visit(rows.narrow(0, begin, count).to(at::kDouble), begin, count);
  }
}

at::Tensor mean_of(const at::Tensor& rows) {
  at::Tensor sum = at::zeros({rows.size(1)}, rows.options().dtype(at::kDouble));
  for_pieces(rows, [&](const at::Tensor& piece, int64_t, int64_t) { sum += piece.sum(0); });
  return sum / rows.size(0);
}

/// standardise() of spectra (..., bands).
at::Tensor standardised(const at::Tensor& spectra, const BandStatistics& statistics) {
  return ((spectra.to(at::kDouble) - statistics.mean) / statistics.std).to(at::kFloat);
}

/// apply_pca() of spectra (..., bands).
at::Tensor projected(const at::Tensor& spectra, const Pca& pca) {
  return (spectra.to(at::kDouble) - pca.mean).matmul(pca.components.t()).to(at::kFloat);
}

/// Returns the source index of each of size + 2 radius positions, mirrored at both ends.
at::Tensor mirrored(int64_t size, int64_t radius) {
  std::vector<int64_t> from(static_cast<size_t>(size + 2 * radius), 0);
  const int64_t period = std::max<int64_t>(1, 2 * (size - 1));  // forward and back
  for (int64_t i = 0; i < static_cast<int64_t>(from.size()); ++i) {
    const int64_t phase = ((i - radius) % period + period) % period;
    from[i] = std::min(phase, period - phase);
  }
  if (size == 1) std::fill(from.begin(), from.end(), 0);
  return at::tensor(from, at::kLong);
}

}  // namespace

BandStatistics band_statistics(const at::Tensor& cube, const at::Tensor& pixels) {
  check_cube(cube);
  const at::Tensor rows = spectra(cube, pixels);
  TORCH_CHECK_VALUE(rows.size(0) > 0, "statistics need at least one pixel");
  const at::Tensor mean = mean_of(rows);
  at::Tensor squares = at::zeros_like(mean);
  for_pieces(rows, [&](const at::Tensor& piece, int64_t, int64_t) { squares += (piece - mean).square().sum(0); });
  const at::Tensor deviation = (squares / rows.size(0)).sqrt();
  // Rounding gives a constant band a deviation of a few units in the last place of its mean.
  const at::Tensor constant = deviation.le(mean.abs() * 1e-12);
  return {mean, at::where(constant, at::ones_like(deviation), deviation)};
}

at::Tensor standardise(const at::Tensor& cube, const BandStatistics& statistics) {
  check_cube(cube);
  at::Tensor result = at::empty(cube.sizes(), cube.options().dtype(at::kFloat));
  const at::Tensor to = result.view({-1, cube.size(2)});
  for_pieces(spectra(cube, {}), [&](const at::Tensor& piece, int64_t begin, int64_t count) {
    to.narrow(0, begin, count).copy_(standardised(piece, statistics));
  });
  return result;
}

Pca fit_pca(const at::Tensor& cube, int64_t k) {
  check_cube(cube);
  TORCH_CHECK_VALUE(k >= 1 && k <= cube.size(2), "components must be in 1..", cube.size(2), ", got ", k);
  const at::Tensor rows = spectra(cube, {});
  const at::Tensor mean = mean_of(rows);
  at::Tensor covariance = at::zeros({rows.size(1), rows.size(1)}, mean.options());
  for_pieces(rows, [&](const at::Tensor& piece, int64_t, int64_t) {
    const at::Tensor centred = piece - mean;
    covariance.addmm_(centred.t(), centred);
  });
  covariance /= rows.size(0);
  const auto [values, vectors] = at::linalg_eigh(covariance);  // ascending
  at::Tensor components = vectors.flip(1).narrow(1, 0, k).t().contiguous();
  const at::Tensor largest = components.gather(1, components.abs().argmax(1, true));
  components = components * largest.sign();
  const at::Tensor variance = values.clamp_min(0).flip(0);
  const at::Tensor whole = variance.sum().clamp_min(1e-300);
  return {mean, components, variance.narrow(0, 0, k) / whole};
}

at::Tensor apply_pca(const at::Tensor& cube, const Pca& pca) {
  check_cube(cube);
  const int64_t k = pca.components.size(0);
  at::Tensor result = at::empty({cube.size(0), cube.size(1), k}, cube.options().dtype(at::kFloat));
  const at::Tensor to = result.view({-1, k});
  for_pieces(spectra(cube, {}), [&](const at::Tensor& piece, int64_t begin, int64_t count) {
    to.narrow(0, begin, count).copy_(projected(piece, pca));
  });
  return result;
}

std::pair<Preprocessing, at::Tensor> fit_preprocessing(const at::Tensor& cube, int64_t components) {
  Preprocessing fitted{.bands = band_statistics(cube)};
  at::Tensor prepared = standardise(cube, fitted.bands);
  if (components > 0) {
    fitted.pca = fit_pca(prepared, components);
    prepared = apply_pca(prepared, *fitted.pca);
    fitted.components = band_statistics(prepared);
    prepared = standardise(prepared, fitted.components);
  }
  return {std::move(fitted), std::move(prepared)};
}

at::Tensor prepare_spectra(const at::Tensor& spectra, const Preprocessing& preprocessing) {
  at::Tensor prepared = standardised(spectra, preprocessing.bands);
  if (!preprocessing.pca) return prepared;
  return standardised(projected(prepared, *preprocessing.pca), preprocessing.components);
}

at::Tensor apply_preprocessing(const at::Tensor& cube, const Preprocessing& preprocessing) {
  const at::Tensor prepared = standardise(cube, preprocessing.bands);
  return preprocessing.pca ? standardise(apply_pca(prepared, *preprocessing.pca), preprocessing.components) : prepared;
}

at::Tensor pad_mirrored(const at::Tensor& cube, int64_t radius) {
  check_cube(cube);
  TORCH_CHECK_VALUE(radius >= 0, "radius must be >= 0, got ", radius);
  const auto rows = mirrored(cube.size(0), radius).to(cube.device());
  const auto columns = mirrored(cube.size(1), radius).to(cube.device());
  return cube.index_select(0, rows).index_select(1, columns);
}

}  // namespace trainkit::hsi
