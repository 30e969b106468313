#include "hsi_classification/cube.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <absl/strings/ascii.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "trainkit/core/data_error.h"
#include "trainkit/core/status.h"

namespace trainkit::hsi {
namespace {

constexpr int64_t kPieceBytes = int64_t{8} << 20;  // of float32 rows at a time

/// float32 has 24 significant bits: larger whole numbers may be rounded.
constexpr int64_t kMostExact = int64_t{1} << 24;

bool may_be_inexact(at::ScalarType dtype) { return !at::isFloatingType(dtype) && c10::elementSize(dtype) >= 4; }

/// Converts rows from row `begin` on to float32 and checks them.
absl::StatusOr<at::Tensor> checked_rows(const std::string& where, const at::Tensor& rows, int64_t begin) {
  const at::Tensor values = rows.to(at::kFloat).contiguous();
  if (rows.is_floating_point() && !values.isfinite().all().item<bool>()) {
    const auto at = first_nonzero(values.isfinite().logical_not());
    return bad_scene(where, "cube", "a value is not finite",
                     fmt::format("{} at row {}, column {}, band {}", value_at(rows, at), begin + at[0], at[1], at[2]),
                     "finite float32 numbers", "positions count from 0");
  }
  if (may_be_inexact(rows.scalar_type())) {
    const at::Tensor most = values.abs();
    if (most.max().item<double>() > static_cast<double>(kMostExact)) {
      const auto at = first_nonzero(most.gt(static_cast<double>(kMostExact)));
      return bad_scene(
          where, "cube", "a whole number is too large for an exact float32",
          fmt::format("{:.0f} at row {}, column {}, band {}", value_at(values, at), begin + at[0], at[1], at[2]),
          fmt::format("-{} to {}", kMostExact, kMostExact), "divide the values by their scale");
    }
  }
  return values;
}

/// Returns the last part of the name of an array in groups, in lower case.
std::string own_name(const std::string& name) { return absl::AsciiStrToLower(name.substr(name.rfind('/') + 1)); }

}  // namespace

absl::Status bad_scene(const std::string& where, const std::string& field, const std::string& problem,
                       const std::string& got, const std::string& expected, const std::string& hint) {
  return data_error("data.scene", {.file = where, .field = field}, problem, got, expected, hint);
}

std::string sizes_text(at::IntArrayRef sizes) { return fmt::format("{}", fmt::join(sizes, " x ")); }

std::vector<int64_t> first_nonzero(const at::Tensor& faults) {
  int64_t flat = faults.flatten().to(at::kByte).argmax().item<int64_t>();
  std::vector<int64_t> position(faults.dim());
  for (int64_t d = faults.dim(); d-- > 0; flat /= faults.size(d)) position[d] = flat % faults.size(d);
  return position;
}

double value_at(const at::Tensor& tensor, const std::vector<int64_t>& position) {
  at::Tensor at = tensor;
  for (const int64_t index : position) at = at.select(0, index);
  return at.item<double>();
}

Cube::Cube(const at::Tensor& values) : sizes_(values.sizes().vec()), dtype_(values.scalar_type()), values_(values) {}

absl::StatusOr<Cube> Cube::open(const std::string& path, const std::string& key,
                                const std::vector<std::string>& usual) {
  TRAINKIT_ASSIGN_OR_RETURN(const auto source, ArraySource::open(path));
  TRAINKIT_ASSIGN_OR_RETURN(
      const std::string name,
      source->choose({.what = "the cube",
                      .flag = "--cube_key",
                      .given = key,
                      .usual = usual,
                      .fits = [](const ArrayInfo& array) { return array.dtype && array.sizes.size() == 3; },
                      .error_id = "data.scene"}));
  Cube cube;
  cube.source_ = source;
  cube.array_ = name;
  const auto& arrays = source->arrays();
  const auto found = std::find_if(arrays.begin(), arrays.end(), [&](const ArrayInfo& a) { return a.name == name; });
  if (found != arrays.end() && found->dtype && source->reads_rows(name)) {
    cube.sizes_ = found->sizes;
    cube.dtype_ = *found->dtype;
  } else {
    TRAINKIT_ASSIGN_OR_RETURN(cube.values_, source->read(name));
    cube.sizes_ = cube.values_.sizes().vec();
    cube.dtype_ = cube.values_.scalar_type();
  }
  cube.name_ = path;
  TRAINKIT_RETURN_IF_ERROR(cube.check_kind());
  return cube;
}

absl::StatusOr<std::vector<double>> Cube::wavelengths() const {
  if (!source_) return std::vector<double>{};
  TRAINKIT_ASSIGN_OR_RETURN(std::vector<double> values, source_->numbers("wavelength"));
  for (const ArrayInfo& array : source_->arrays()) {
    const std::string name = own_name(array.name);
    const bool is_named = name == "wavelength" || name == "wavelengths" || name == "wl" || name == "lambda";
    int64_t count = array.dtype ? 1 : 0;
    for (const int64_t size : array.sizes) count *= size;
    if (!is_named || count != bands()) continue;
    TRAINKIT_ASSIGN_OR_RETURN(const at::Tensor read, source_->read(array.name));
    const at::Tensor numbers = read.to(at::kDouble).flatten().contiguous();
    values.assign(numbers.const_data_ptr<double>(), numbers.const_data_ptr<double>() + bands());
    break;
  }
  // Zeros and NaN stand for unknown wavelengths.
  if (std::any_of(values.begin(), values.end(), [](double x) { return !(x > 0 && std::isfinite(x)); })) values.clear();
  // Hyperspectral sensors see 0.2 to 20 micrometres: smaller numbers are micrometres.
  const bool in_micrometres = !values.empty() && *std::max_element(values.begin(), values.end()) < 100;
  for (double& value : values) value *= in_micrometres ? 1000 : 1;
  return values;
}

absl::StatusOr<at::Tensor> Cube::rows(int64_t begin, int64_t count) const {
  absl::StatusOr<at::Tensor> rows;
  if (values_.defined()) {
    rows = values_.narrow(0, begin, count);
  } else {
    TRAINKIT_ASSIGN_OR_RETURN(rows, source_->read_rows(array_, begin, count));
  }
  TRAINKIT_ASSIGN_OR_RETURN(const at::Tensor values, checked_rows(name_, *rows, begin));
  return chosen_.empty() ? values : values.index_select(2, at::tensor(chosen_, at::kLong));
}

absl::Status Cube::for_rows(const std::function<absl::Status(const at::Tensor&, int64_t)>& visit) const {
  const int64_t row_bytes = width() * bands() * static_cast<int64_t>(sizeof(float));
  const int64_t piece = std::max<int64_t>(1, kPieceBytes / row_bytes);
  for (int64_t begin = 0; begin < height(); begin += piece) {
    TRAINKIT_ASSIGN_OR_RETURN(const at::Tensor some, rows(begin, std::min(piece, height() - begin)));
    TRAINKIT_RETURN_IF_ERROR(visit(some, begin));
  }
  return absl::OkStatus();
}

absl::Status Cube::check_kind() const {
  if (at::isComplexType(dtype_)) return bad_scene(name_, "cube", "contains complex numbers");
  const bool is_cube = sizes_.size() == 3;
  if (is_cube && std::find(sizes_.begin(), sizes_.end(), 0) == sizes_.end()) return absl::OkStatus();
  return bad_scene(name_, "cube", is_cube ? "has no pixel" : "wrong number of dimensions", sizes_text(sizes_),
                   "height x width x bands");
}

absl::Status Cube::check_values() const {
  if (!at::isFloatingType(dtype_) && !may_be_inexact(dtype_)) return absl::OkStatus();
  return for_rows([](const at::Tensor&, int64_t) { return absl::OkStatus(); });
}

Cube Cube::with_bands(std::vector<int64_t> bands) const {
  Cube cube = *this;
  if (bands.empty()) return cube;
  cube.sizes_[2] = std::ssize(bands);
  cube.chosen_ = std::move(bands);
  return cube;
}

void Cube::release() {
  values_.reset();
  source_.reset();
}

}  // namespace trainkit::hsi
