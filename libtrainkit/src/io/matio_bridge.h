#pragma once
/// Calls libmatio. No other file does; all its input was checked before, see mat.h.

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/unique_descriptor.h"
#include "trainkit/io/mat.h"

namespace trainkit::detail {

/// An anonymous file in memory (memfd). path() is in /proc, for libraries that open files by name.
class MemoryFile {
 public:
  static absl::StatusOr<MemoryFile> create();
  absl::Status append(const void* data, size_t size);
  std::string path() const;
  int descriptor() const { return descriptor_.get(); }

 private:
  explicit MemoryFile(UniqueDescriptor descriptor) : descriptor_(std::move(descriptor)) {}
  UniqueDescriptor descriptor_;
};

/// Returns `tensor` with its dimensions reversed.
at::Tensor reverse_dims(const at::Tensor& tensor);

/// Convert between file order, in which MATLAB's first dimension varies fastest, and tensors.
///
/// column_major returns a tensor for the numbers of a variable in file order: zeros, or a view of the numbers at
/// `data`. Logicals are uint8. row_major returns the variable's tensor from the filled `columns`.
at::Tensor column_major(const MatVariable& variable);
at::Tensor column_major(const MatVariable& variable, void* data);
at::Tensor row_major(const at::Tensor& columns, const MatVariable& variable);

/// Reads the only variable of the complete version 5 file at `path`. kDataLoss if libmatio rejects the file.
absl::StatusOr<at::Tensor> read_with_matio(const std::string& path, const MatVariable& variable);

/// Writes `variables` to `path`. The caller has checked that all of them can be stored.
absl::Status write_with_matio(const std::string& path, std::span<const std::pair<std::string, at::Tensor>> variables,
                              MatVersion version);

}  // namespace trainkit::detail
