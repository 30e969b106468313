#pragma once
/// Declares the parts shared by both kinds of `.mat` files.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainkit/arrays/mat.h"
#include "trainkit/io/mapped_file.h"

namespace trainkit::detail {

/// MATLAB's classes, with the numbers of version 5.
enum class MatClass : int {
  kCell = 1,
  kStruct,
  kObject,
  kChar,
  kSparse,
  kDouble,
  kSingle,
  kInt8,
  kUint8,
  kInt16,
  kUint16,
  kInt32,
  kUint32,
  kInt64,
  kUint64,
  kFunction,
  kOpaque,
};

/// Returns the name of a class, for example "uint8". Empty for an unknown class.
std::string_view mat_class_name(int number);

/// Returns the dtype for arrays of this class. nullopt for a class that is not numeric.
std::optional<at::ScalarType> mat_class_dtype(int number);

/// Returns the MATLAB class for a dtype. 0 if MATLAB has none.
int mat_class_of(at::ScalarType dtype);

/// A fault of a file: `data.mat`, exit code 4.
struct MatFault {
  std::string path;
  int64_t offset = -1;  ///< -1 if unknown
  std::string variable = {};
  std::string problem;
  std::string got = {};
  std::string expected = {};
  std::string hint = {};
};
absl::Status mat_error(const MatFault& fault, absl::StatusCode code = absl::StatusCode::kInvalidArgument);

/// Formats sizes, for example "145 x 145 x 200".
std::string describe_sizes(const std::vector<int64_t>& sizes);

/// A file with a list of variables that are read one by one.
class MatSource {
 public:
  MatSource(std::string path, std::vector<MatVariable> variables)
      : path_(std::move(path)), variables_(std::move(variables)) {}
  virtual ~MatSource() = default;
  const std::string& path() const { return path_; }
  const std::vector<MatVariable>& variables() const { return variables_; }
  /// Reads variable `index`, which must have a dtype.
  virtual absl::StatusOr<at::Tensor> read(size_t index) const = 0;

 private:
  std::string path_;
  std::vector<MatVariable> variables_;
};

absl::StatusOr<std::shared_ptr<const MatSource>> open_mat5(std::shared_ptr<const MappedFile> file,
                                                           const MatOptions& options);
absl::StatusOr<std::shared_ptr<const MatSource>> open_mat73(std::shared_ptr<const MappedFile> file,
                                                            const MatOptions& options);

}  // namespace trainkit::detail
