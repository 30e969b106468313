#pragma once
/// A cube of spectra, read by rows.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trainkit/arrays/array_source.h"

namespace trainkit::hsi {

/// A cube (height, width, bands) of any real dtype, in a file or in memory. A `.npy`, stored `.npz`, HDF5 or ENVI file
/// is read by rows, and may be larger than memory; the array of any other file is read when it is opened, and held with
/// the file's dtype. Thread-safe.
class Cube {
 public:
  Cube() = default;
  /// A cube in memory.
  Cube(const at::Tensor& values);  // NOLINT(google-explicit-constructor)
  /// Opens the array `key` of a file; empty: one of the `usual` names, or the only array with three dimensions. Errors
  /// (exit code 4): those of ArraySource and check_kind().
  static absl::StatusOr<Cube> open(const std::string& path, const std::string& key,
                                   const std::vector<std::string>& usual = {});

  const std::vector<int64_t>& sizes() const { return sizes_; }
  int64_t height() const { return sizes_[0]; }
  int64_t width() const { return sizes_[1]; }
  int64_t bands() const { return sizes_[2]; }
  /// Centre of each band in nanometres: the attribute "wavelength" of the file, or its array of that name (or
  /// wavelengths, wl, lambda). Empty if it has none, or one that is not positive and finite.
  absl::StatusOr<std::vector<double>> wavelengths() const;

  /// Reads rows [begin, begin + count): (count, width, bands) float32, contiguous. Errors (exit code 4): data.scene for
  /// a value that is not finite, or a whole number that float32 may round, with its row, column and band.
  absl::StatusOr<at::Tensor> rows(int64_t begin, int64_t count) const;
  /// Calls `visit` for all rows, some at a time, in their order.
  absl::Status for_rows(const std::function<absl::Status(const at::Tensor& rows, int64_t begin)>& visit) const;
  /// Checks sizes and dtype: data.scene (exit code 4) for another number of dimensions, no pixel or complex numbers.
  absl::Status check_kind() const;
  /// Reads all rows to check them, where the dtype has values that rows() refuses.
  absl::Status check_values() const;
  /// Sets the name of the cube in messages: its file, or the scene.
  void set_name(const std::string& name) { name_ = name; }
  /// Returns the cube with these bands in this order; empty: all.
  Cube with_bands(std::vector<int64_t> bands) const;
  /// Drops the array and the file; the sizes stay.
  void release();

 private:
  std::string name_ = "cube";
  std::vector<int64_t> sizes_ = {0, 0, 0};
  at::ScalarType dtype_ = at::kFloat;
  at::Tensor values_;  // in memory
  std::shared_ptr<const ArraySource> source_;
  std::string array_;            // of source_
  std::vector<int64_t> chosen_;  // bands; empty: all
};

/// Makes an error (data.scene, exit code 4) about `field` of the file or scene `where`.
absl::Status bad_scene(const std::string& where, const std::string& field, const std::string& problem,
                       const std::string& got = "", const std::string& expected = "", const std::string& hint = "");

/// Formats sizes: "145 x 145 x 200".
std::string sizes_text(at::IntArrayRef sizes);

/// Returns the position of the first nonzero element of `faults`, and the value of `tensor` there.
std::vector<int64_t> first_nonzero(const at::Tensor& faults);
double value_at(const at::Tensor& tensor, const std::vector<int64_t>& position);

}  // namespace trainkit::hsi
