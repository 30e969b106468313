#pragma once
/// Reads and writes whole arrays as NumPy `.npy` files. For arrays larger than memory see data/mapped_array_dataset.h.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <string>

namespace trainkit {

/// Reads an array into a new contiguous CPU tensor. Supports formats 1.0 to 3.0, C and Fortran order, little-endian
/// numbers and bool.
///
/// Errors (exit code 4): those of MappedFile::open; data.npy for an invalid or unsupported file (big-endian; objects,
/// which would be pickles). Source: numpy.lib.format, NumPy 2.4.
absl::StatusOr<at::Tensor> read_npy(const std::string& path);

/// Writes format 1.0 in C order, atomically (write_file_atomically). The bytes equal those of numpy.save.
/// kInvalidArgument for a dtype that NumPy lacks. Disk errors: exit code 6.
absl::Status write_npy(const std::string& path, const at::Tensor& tensor);

}  // namespace trainkit
