#include "hsi_classification/preprocess.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <vector>

#include "trainkit/core/status.h"

namespace trainkit::hsi {
namespace {

// Note [A scene in the memory of its image]
//
// A scene fills most of the memory of a run, so it exists once: its rows are read into the inner part of the image that
// the patches are gathered from, and standardised in place, a piece of float64 at a time. The sums of a statistic and
// the products of PCA depend on where pieces begin in the last bits, so a piece is always kPiece pixels of the scene,
// from its first pixel on; a strip of the scene (prepare_strip) is projected in the same pieces.

constexpr int64_t kPiece = 16'384;
/// Pixels of a piece where each value depends on no other.
constexpr int64_t kElementwisePiece = 2'048;

void check_cube(const at::Tensor& cube) {
  TORCH_CHECK_VALUE(cube.dim() == 3 && cube.numel() > 0, "cube must be (height, width, bands), got ", cube.sizes());
}

int64_t pixels_of(const at::Tensor& cube) { return cube.size(0) * cube.size(1); }

/// Calls visit(spectra, offset) for the parts of rows of `cube` that are its pixels [begin, begin + count). `spectra`
/// is a view (n, bands), whose first pixel is begin + offset.
template <class Visit>
void for_row_parts(const at::Tensor& cube, int64_t begin, int64_t count, const Visit& visit) {
  const int64_t width = cube.size(1);
  for (int64_t done = 0; done < count;) {
    const int64_t row = (begin + done) / width, column = (begin + done) % width;
    const int64_t n = std::min(width - column, count - done);
    visit(cube.select(0, row).narrow(0, column, n), done);
    done += n;
  }
}

/// Calls visit(piece, begin) for all pieces of the pixels, new tensors (n, bands) float64, contiguous.
template <class Visit>
void for_pieces(const at::Tensor& cube, int64_t pixels, const Visit& visit) {
  for (int64_t begin = 0; begin < pixels_of(cube); begin += pixels) {
    const int64_t count = std::min(pixels, pixels_of(cube) - begin);
    const at::Tensor piece = at::empty({count, cube.size(2)}, cube.options().dtype(at::kDouble));
    for_row_parts(cube, begin, count, [&](const at::Tensor& spectra, int64_t offset) {
      piece.narrow(0, offset, spectra.size(0)).copy_(spectra);
    });
    visit(piece, begin);
  }
}

/// Writes spectra (n, bands) to the pixels of `cube` from `begin` on.
void write_spectra(const at::Tensor& cube, int64_t begin, const at::Tensor& spectra) {
  for_row_parts(cube, begin, spectra.size(0),
                [&](const at::Tensor& to, int64_t offset) { to.copy_(spectra.narrow(0, offset, to.size(0))); });
}

at::Tensor mean_of(const at::Tensor& cube) {
  at::Tensor sum = at::zeros({cube.size(2)}, cube.options().dtype(at::kDouble));
  for_pieces(cube, kPiece, [&](const at::Tensor& piece, int64_t) { sum += piece.sum(0); });
  return sum / pixels_of(cube);
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
std::vector<int64_t> mirrored(int64_t size, int64_t radius) {
  std::vector<int64_t> from(static_cast<size_t>(size + 2 * radius), 0);
  const int64_t period = std::max<int64_t>(1, 2 * (size - 1));  // forward and back
  for (int64_t i = 0; i < static_cast<int64_t>(from.size()); ++i) {
    const int64_t phase = ((i - radius) % period + period) % period;
    from[i] = std::min(phase, period - phase);
  }
  if (size == 1) std::fill(from.begin(), from.end(), 0);
  return from;
}

/// Fills the first and the last `radius` columns.
void mirror_columns(const at::Tensor& image, int64_t radius) {
  const int64_t width = image.size(1) - 2 * radius;
  const std::vector<int64_t> from = mirrored(width, radius);
  for (int64_t i = 0; i < 2 * radius; ++i) {
    const int64_t column = i < radius ? i : width + i;
    image.select(1, column).copy_(image.select(1, radius + from[static_cast<size_t>(column)]));
  }
}

at::Tensor inner_part(const at::Tensor& image, int64_t radius) {
  return image.narrow(0, radius, image.size(0) - 2 * radius).narrow(1, radius, image.size(1) - 2 * radius);
}

at::Tensor empty_image(const Cube& cube, int64_t bands, int64_t radius) {
  return at::empty({cube.height() + 2 * radius, cube.width() + 2 * radius, bands}, at::kFloat);
}

}  // namespace

BandStatistics band_statistics(const at::Tensor& cube) {
  check_cube(cube);
  const at::Tensor mean = mean_of(cube);
  at::Tensor squares = at::zeros_like(mean);
  for_pieces(cube, kPiece, [&](const at::Tensor& piece, int64_t) { squares += piece.sub_(mean).square_().sum(0); });
  const at::Tensor deviation = (squares / pixels_of(cube)).sqrt();
  // Rounding gives a constant band a deviation of a few units in the last place of its mean.
  const at::Tensor constant = deviation.le(mean.abs() * 1e-12);
  return {mean, at::where(constant, at::ones_like(deviation), deviation)};
}

void standardise(const at::Tensor& cube, const BandStatistics& statistics) {
  check_cube(cube);
  for_pieces(cube, kElementwisePiece, [&](const at::Tensor& piece, int64_t begin) {
    write_spectra(cube, begin, standardised(piece, statistics));
  });
}

Pca fit_pca(const at::Tensor& cube, int64_t k) {
  check_cube(cube);
  const int64_t bands = cube.size(2);
  TORCH_CHECK_VALUE(k >= 1 && k <= bands, "components must be in 1..", bands, ", got ", k);
  const at::Tensor mean = mean_of(cube);
  at::Tensor covariance = at::zeros({bands, bands}, mean.options());
  for_pieces(cube, kPiece, [&](const at::Tensor& piece, int64_t) {
    piece.sub_(mean);
    covariance.addmm_(piece.t(), piece);
  });
  covariance /= pixels_of(cube);
  const auto [values, vectors] = at::linalg_eigh(covariance);  // ascending
  at::Tensor components = vectors.flip(1).narrow(1, 0, k).t().contiguous();
  const at::Tensor largest = components.gather(1, components.abs().argmax(1, true));
  components = components * largest.sign();
  const at::Tensor variance = values.clamp_min(0).flip(0);
  const at::Tensor whole = variance.sum().clamp_min(1e-300);
  return {mean, components, variance.narrow(0, 0, k) / whole};
}

void apply_pca(const at::Tensor& cube, const Pca& pca, const at::Tensor& out) {
  check_cube(cube);
  for_pieces(cube, kPiece,
             [&](const at::Tensor& piece, int64_t begin) { write_spectra(out, begin, projected(piece, pca)); });
}

at::Tensor prepare_spectra(const at::Tensor& spectra, const Preprocessing& preprocessing) {
  at::Tensor prepared = standardised(spectra, preprocessing.bands);
  if (!preprocessing.pca) return prepared;
  return standardised(projected(prepared, *preprocessing.pca), preprocessing.components);
}

absl::StatusOr<PreparedScene> prepare_scene(Cube& cube, const std::optional<Preprocessing>& earlier, int64_t components,
                                            int64_t radius, Digest& digest) {
  const bool projects = earlier ? earlier->pca.has_value() : components > 0;
  at::Tensor image = empty_image(cube, cube.bands(), projects ? 0 : radius);
  at::Tensor inner = inner_part(image, projects ? 0 : radius);
  TRAINKIT_RETURN_IF_ERROR(cube.for_rows([&](const at::Tensor& rows, int64_t begin) {
    digest.update(rows.const_data_ptr(), rows.nbytes());
    inner.narrow(0, begin, rows.size(0)).copy_(rows);
    return absl::OkStatus();
  }));
  cube.release();
  Preprocessing fitted = earlier.value_or(Preprocessing{});
  if (!earlier) fitted.bands = band_statistics(inner);
  standardise(inner, fitted.bands);
  if (projects) {
    if (!earlier) fitted.pca = fit_pca(inner, components);
    const at::Tensor projection = empty_image(cube, fitted.output_bands(), radius);
    const at::Tensor out = inner_part(projection, radius);
    apply_pca(inner, *fitted.pca, out);
    image = projection;
    inner = out;
    if (!earlier) fitted.components = band_statistics(inner);
    standardise(inner, fitted.components);
  }
  mirror_borders(image, radius);
  return PreparedScene{std::move(fitted), std::move(image)};
}

absl::StatusOr<at::Tensor> prepare_strip(const Cube& cube, const Preprocessing& preprocessing, int64_t radius,
                                         int64_t begin, int64_t end) {
  const int64_t width = cube.width(), pixels = cube.height() * width;
  std::vector<int64_t> from = mirrored(cube.height(), radius);
  from.assign(from.begin() + begin, from.begin() + end + 2 * radius);
  const auto [first, last] = std::minmax_element(from.begin(), from.end());
  const int64_t low = *first, high = *last + 1;
  // See Note [A scene in the memory of its image].
  const int64_t piece = preprocessing.pca ? kPiece : kElementwisePiece;
  const int64_t from_pixel = low * width / piece * piece;
  const int64_t to_pixel = std::min((high * width + piece - 1) / piece * piece, pixels);
  const int64_t first_row = from_pixel / width, last_row = (to_pixel - 1) / width;
  TRAINKIT_ASSIGN_OR_RETURN(const at::Tensor rows, cube.rows(first_row, last_row - first_row + 1));
  const at::Tensor spectra = rows.view({-1, cube.bands()});
  const at::Tensor prepared = at::empty({spectra.size(0), preprocessing.output_bands()}, at::kFloat);
  for (int64_t at = from_pixel; at < to_pixel; at += piece) {
    const int64_t begin_in_rows = at - first_row * width, count = std::min(piece, to_pixel - at);
    prepared.narrow(0, begin_in_rows, count)
        .copy_(prepare_spectra(spectra.narrow(0, begin_in_rows, count), preprocessing));
  }
  const at::Tensor lines = prepared.view({-1, width, preprocessing.output_bands()});
  const at::Tensor image = at::empty({std::ssize(from), width + 2 * radius, preprocessing.output_bands()}, at::kFloat);
  for (int64_t i = 0; i < std::ssize(from); ++i) {
    image.select(0, i).narrow(0, radius, width).copy_(lines.select(0, from[static_cast<size_t>(i)] - first_row));
  }
  mirror_columns(image, radius);
  return image;
}

void mirror_borders(const at::Tensor& image, int64_t radius) {
  check_cube(image);
  const int64_t height = image.size(0) - 2 * radius;
  TORCH_CHECK_VALUE(radius >= 0 && height >= 1 && image.size(1) > 2 * radius, "an image of ", image.sizes(),
                    " has no inner part in borders of ", radius);
  mirror_columns(image.narrow(0, radius, height), radius);
  const std::vector<int64_t> from = mirrored(height, radius);
  for (int64_t i = 0; i < 2 * radius; ++i) {
    const int64_t row = i < radius ? i : height + i;
    image.select(0, row).copy_(image.select(0, radius + from[static_cast<size_t>(row)]));
  }
}

}  // namespace trainkit::hsi
