#pragma once
/// Reads arrays from MATLAB `.mat` files of version 5 (MATLAB 6 and 7, Octave, SciPy) and 7.3 (HDF5); writes version 5.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trainkit {

namespace detail {
class MatSource;
}

/// A variable of a file.
struct MatVariable {
  std::string name;
  /// MATLAB class, for messages: "uint8", "double", "logical", "struct", "cell", "char", "sparse", "complex double",
  /// ...
  std::string type;
  /// Dtype of the tensor from read(). nullopt if the variable is not an array of real numbers or logicals.
  std::optional<at::ScalarType> dtype;
  /// MATLAB's size(), at least two numbers. Empty if unknown.
  std::vector<int64_t> sizes;
};

struct MatOptions {
  /// Largest accepted variable in bytes, 4 GiB by default. Prevents a small file from requesting all memory.
  int64_t max_variable_bytes = int64_t{4} << 30;
};

/// A `.mat` file opened for reading.
///
///   auto file = MatFile::open("Indian_pines_corrected.mat").value();
///   at::Tensor cube = file.read("indian_pines_corrected").value();   // (145, 145, 200) uint16
///
/// Version 5 is read without libmatio, which trusts its input: it returns uninitialised memory for a truncated file,
/// and crashes on some others. Tags, claimed sizes, the zlib stream and its checksum are checked.
///
/// Version 7.3 is read by HDF5 without libmatio, one dataset at a time, in a forked copy of this process. A crash there
/// becomes an error here. Checked first: the end of file stored in the header against the real size, and type, sizes,
/// layout, filters and every chunk of the variable. References to other files (external storage, links, virtual
/// datasets) are refused.
///
/// Errors (exit code 4) name file, offset and variable: those of MappedFile::open; `data.mat`. Thread-safe; HDF5 is
/// serialised by one lock per process.
class MatFile {
 public:
  /// Opens a file and lists its variables without reading arrays. Errors: see above; also duplicate variable names.
  static absl::StatusOr<MatFile> open(const std::string& path, const MatOptions& options = {});

  /// Variables in file order.
  const std::vector<MatVariable>& variables() const;
  const std::string& path() const;

  /// Reads a variable into a new contiguous CPU tensor with MATLAB's sizes and the variable's own type. Element (i, j,
  /// k) is MATLAB's (i+1, j+1, k+1). An empty array of version 5 gives an empty tensor; an empty array of version
  /// 7.3 is an error.
  ///
  /// kNotFound if there is no such variable; the message lists the names. kUnimplemented for a variable that is not an
  /// array of real numbers (struct, cell, char, sparse, complex, ...). kDataLoss if the file was truncated or changed.
  absl::StatusOr<at::Tensor> read(std::string_view name) const;

  /// Returns `data.mat` for variable `name` of this file, for a caller that rejects its contents.
  absl::Status error(std::string_view name, const std::string& problem, const std::string& got = "",
                     const std::string& expected = "") const;

 private:
  explicit MatFile(std::shared_ptr<const detail::MatSource> source) : source_(std::move(source)) {}
  std::shared_ptr<const detail::MatSource> source_;
};

/// Loads the libraries that write_mat() loads otherwise: a program that writes a file at the end of a long run finds
/// out at its start whether it can. Thread-safe. Error (exit code 2): program.library, with the packages to install.
absl::Status load_mat_writer();

/// Writes the variables to a compressed file of version 5 in this order, atomically (write_file_atomically). A tensor
/// of one dimension becomes a row, as in SciPy.
///
/// kInvalidArgument names a tensor that cannot be stored: its name is a duplicate or not a MATLAB identifier of at most
/// 63 letters, MATLAB has no such dtype (half, bfloat16, complex), it has no element, or it has 2 GiB or more. Disk
/// errors: exit code 6. Those of load_mat_writer().
absl::Status write_mat(const std::string& path, std::span<const std::pair<std::string, at::Tensor>> variables);

}  // namespace trainkit
