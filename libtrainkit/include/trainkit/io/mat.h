#pragma once
/// Arrays in MATLAB's `.mat` files, version 5 (MATLAB 6 and 7, Octave, SciPy) and 7.3 (HDF5).

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

/// One variable of a file.
struct MatVariable {
  std::string name;
  /// MATLAB's class, for messages: "uint8", "double", "logical", "struct", "cell", "char", "sparse", "complex double",
  /// ...
  std::string type;
  /// What read() gives; nullopt for a variable that is no array of real numbers or logicals.
  std::optional<at::ScalarType> dtype;
  /// MATLAB's size(), at least two numbers; empty where the variable has none that is known.
  std::vector<int64_t> sizes;
};

struct MatOptions {
  /// Variables of more bytes are refused, so that a small file cannot claim all of the memory. 4 GiB.
  int64_t max_variable_bytes = int64_t{4} << 30;
};

/// A `.mat` file that was opened for reading.
///
///   auto file = MatFile::open("Indian_pines_corrected.mat").value();
///   at::Tensor cube = file.read("indian_pines_corrected").value();   // (145, 145, 200) uint16
///
/// libmatio trusts what it reads: given a file that was cut, it returns memory that nobody wrote, and some files end
/// the process. So nothing reaches it that was not checked before. Of a file of version 5 our own scanner reads every
/// byte of a variable first: tags, claimed sizes, the zlib stream and its checksum. libmatio is then given that
/// variable alone, in the plainest form. Of a file of version 7.3 the end that it claims is compared with its size;
/// type, sizes, layout, filters and every chunk of the variable are checked, what leads to other files (external
/// storage, links, virtual datasets) is refused, and HDF5 reads that one dataset without libmatio, in a copy of this
/// process (fork): what a damaged file does to it ends as an error.
///
/// Errors (exit code 4) name file, offset and variable: those of MappedFile::open; `data.mat`. Threads: everything may
/// be called from any thread; HDF5 has one lock for the process.
class MatFile {
 public:
  /// Opens a file and lists its variables; no array is read. Errors: above; also a name that stands twice.
  static absl::StatusOr<MatFile> open(const std::string& path, const MatOptions& options = {});

  /// In the order of the file.
  const std::vector<MatVariable>& variables() const;
  const std::string& path() const;

  /// A new contiguous tensor on the CPU, of MATLAB's sizes and the variable's own type: element (i, j, k) is MATLAB's
  /// (i+1, j+1, k+1). kNotFound lists the names there are; kUnimplemented for what is no array of real numbers (struct,
  /// cell, char, sparse, complex, ...); kDataLoss for a file that was cut or changed meanwhile.
  absl::StatusOr<at::Tensor> read(std::string_view name) const;

  /// `data.mat` about variable `name` of this file, for a caller who finds fault with its contents.
  absl::Status error(std::string_view name, const std::string& problem, const std::string& got = "",
                     const std::string& expected = "") const;

 private:
  explicit MatFile(std::shared_ptr<const detail::MatSource> source) : source_(std::move(source)) {}
  std::shared_ptr<const detail::MatSource> source_;
};

enum class MatVersion {
  k5,   ///< At most 2 GiB a variable. Compressed.
  k73,  ///< HDF5.
};

/// Writes a file atomically (write_file_atomically) with these variables, in this order. A tensor of one dimension is
/// written as a row, as SciPy does. kInvalidArgument names a tensor that a file cannot hold: a name that is no MATLAB
/// identifier of at most 63 letters or stands twice, a dtype that MATLAB lacks (half, bfloat16, complex), no element.
/// Errors of the disk: exit code 6.
absl::Status write_mat(const std::string& path, std::span<const std::pair<std::string, at::Tensor>> variables,
                       MatVersion version = MatVersion::k5);

}  // namespace trainkit
