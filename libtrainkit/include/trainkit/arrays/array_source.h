#pragma once
/// Named arrays of a file, whatever its format.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trainkit {

/// An array of a file.
struct ArrayInfo {
  /// Empty in a format that has one array without a name.
  std::string name = {};
  /// The format's word for its elements: "uint16", "struct".
  std::string type = {};
  /// Dtype of the tensor from read(); nullopt if it is no array of real numbers or logicals.
  std::optional<at::ScalarType> dtype = {};
  /// Empty if they are known only after reading.
  std::vector<int64_t> sizes = {};
};

/// Which array of a file is meant.
struct ArrayChoice {
  /// What it is, and the flag that names one: "the cube", "--cube_key".
  std::string what = {};
  std::string flag = {};
  /// The name that the user gave; empty: found among the arrays.
  std::string given = {};
  /// Usual names, in order.
  std::vector<std::string> usual = {};
  /// Whether an array can be it. Not called for a file with one array without a name.
  std::function<absl::StatusOr<bool>(const ArrayInfo&)> fits = {};
  /// Id of the error.
  std::string error_id = "data.array";
};

/// A file with arrays: NumPy `.npy` and `.npz`, MATLAB `.mat`, HDF5 (`.h5`), ENVI (`.hdr` and its data file),
/// safetensors and PNG. The contents tell the format, not the name. An array in a group of an HDF5 file is
/// "group/name". Of an HDF5 file are read numbers and bools, contiguous or in chunks, packed with gzip and shuffled or
/// not; other filters, links and data in other files are refused. Thread-safe.
///
///   TRAINKIT_ASSIGN_OR_RETURN(const auto source, ArraySource::open(path));
///   TRAINKIT_ASSIGN_OR_RETURN(const std::string name, source->choose({.what = "the cube", .flag = "--cube_key"}));
///   TRAINKIT_ASSIGN_OR_RETURN(const at::Tensor cube, source->read(name));
class ArraySource {
 public:
  /// Opens a file and lists its arrays. Errors (exit code 4): those of the format's reader; data.array for a file of no
  /// such format.
  static absl::StatusOr<std::shared_ptr<const ArraySource>> open(const std::string& path);
  /// Returns whether the name of a file ends as those of array files do. open() does not need it.
  static bool has_usual_name(std::string_view path);
  /// The endings of such names, for messages: ".npy, .npz, ... or .png".
  static std::string usual_names();

  virtual ~ArraySource() = default;
  const std::string& path() const { return path_; }
  /// What the file was recognised as: "a NumPy array".
  const std::string& format() const { return format_; }
  const std::vector<ArrayInfo>& arrays() const { return arrays_; }

  /// Reads an array into a new contiguous CPU tensor. Errors: those of the format's reader.
  virtual absl::StatusOr<at::Tensor> read(std::string_view name) const = 0;
  /// Reads rows [begin, begin + count) of the first dimension of an array into a new contiguous CPU tensor. The range
  /// lies within the array, which has at least one dimension. Errors: those of read().
  virtual absl::StatusOr<at::Tensor> read_rows(std::string_view name, int64_t begin, int64_t count) const;
  /// Returns whether read_rows() reads these rows only, as from .npy, stored .npz, HDF5 and ENVI files; else it reads
  /// the whole array. The file is mapped, and what was read of it is dropped from memory: a loop over the rows takes
  /// the memory of some rows, for files larger than memory too.
  virtual bool reads_rows(std::string_view name) const;
  /// Returns numbers that the file has about its arrays: "wavelength" of an ENVI header, a numeric attribute of an HDF5
  /// file or else of the first of its arrays that has it; empty if it has none.
  virtual absl::StatusOr<std::vector<double>> numbers(std::string_view attribute) const;
  /// Returns the name of the array that is meant: the given one, a usual one, or the only one that fits. Error
  /// `error_id` (exit code 4) if none or several fit; it lists them.
  absl::StatusOr<std::string> choose(const ArrayChoice& choice) const;

 protected:
  ArraySource(std::string path, std::string format, std::vector<ArrayInfo> arrays)
      : path_(std::move(path)), format_(std::move(format)), arrays_(std::move(arrays)) {}
  /// Returns the description of an array. Error `error_id` (exit code 4) if there is none of that name.
  absl::StatusOr<ArrayInfo> find_array(std::string_view name, const std::string& error_id) const;

 private:
  std::string path_, format_;
  std::vector<ArrayInfo> arrays_;
};

}  // namespace trainkit
