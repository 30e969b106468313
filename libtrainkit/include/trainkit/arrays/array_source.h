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
  /// "array" in a format that has one array without a name.
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

/// A file with arrays: NumPy `.npy`, MATLAB `.mat`, ENVI (`.hdr` and its data file), safetensors and PNG. The contents
/// tell the format, not the name. Thread-safe.
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

  virtual ~ArraySource() = default;
  const std::string& path() const { return path_; }
  /// What the file was recognised as: "a NumPy array".
  const std::string& format() const { return format_; }
  const std::vector<ArrayInfo>& arrays() const { return arrays_; }

  /// Reads an array into a new contiguous CPU tensor. Errors: those of the format's reader.
  virtual absl::StatusOr<at::Tensor> read(std::string_view name) const = 0;
  /// Returns numbers that the file has about its arrays, such as "wavelength" of an ENVI header; empty if it has none.
  virtual absl::StatusOr<std::vector<double>> numbers(std::string_view attribute) const;
  /// Returns the name of the array that is meant: the given one, a usual one, or the only one that fits. Error
  /// `error_id` (exit code 4) if none or several fit; it lists them.
  absl::StatusOr<std::string> choose(const ArrayChoice& choice) const;

 protected:
  ArraySource(std::string path, std::string format, std::vector<ArrayInfo> arrays)
      : path_(std::move(path)), format_(std::move(format)), arrays_(std::move(arrays)) {}

 private:
  std::string path_, format_;
  std::vector<ArrayInfo> arrays_;
};

}  // namespace trainkit
