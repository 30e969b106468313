#pragma once
/// The only place that calls libmatio. What it is given was checked before: see mat.h.

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trainkit/io/mat.h"

namespace trainkit::detail {

/// A file in memory, without a name in any folder; libraries that want a path get one of /proc.
class MemoryFile {
 public:
  static absl::StatusOr<MemoryFile> create();
  MemoryFile(MemoryFile&& other) noexcept;
  MemoryFile& operator=(MemoryFile&&) = delete;
  ~MemoryFile();
  absl::Status append(const void* data, size_t size);
  std::string path() const;
  int descriptor() const { return descriptor_; }

 private:
  explicit MemoryFile(int descriptor) : descriptor_(descriptor) {}
  int descriptor_;
};

/// `tensor` with its dimensions in the other order.
at::Tensor turned(const at::Tensor& tensor);

/// Zeros for the numbers of a variable in the order of a file, which has MATLAB's first dimension vary fastest;
/// logicals as uint8. Or the numbers at `data`, which are not copied. And the variable's tensor once they are there.
at::Tensor column_major(const MatVariable& variable);
at::Tensor column_major(const MatVariable& variable, void* data);
at::Tensor row_major(const at::Tensor& columns, const MatVariable& variable);

/// The only variable of a file of version 5 at `path`, which is whole. kDataLoss if libmatio finds it otherwise.
absl::StatusOr<at::Tensor> read_by_matio(const std::string& path, const MatVariable& variable);

/// Writes variables that can be written.
absl::Status write_by_matio(const std::string& path, std::span<const std::pair<std::string, at::Tensor>> variables,
                            MatVersion version);

}  // namespace trainkit::detail
