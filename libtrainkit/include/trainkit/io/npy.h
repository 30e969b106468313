#pragma once
/// Whole arrays as NumPy's `.npy` files. Rows of one that is larger than memory: data/mapped_array_dataset.h.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <string>

namespace trainkit {

/// A new contiguous tensor on the CPU (format 1.0 to 3.0; C or Fortran order; little-endian numbers or bool). Errors
/// (exit code 4): those of MappedFile::open; data.npy, which names what is wrong with the file or is not supported
/// (big-endian, objects: those would be pickles). Source: numpy.lib.format, NumPy 2.4.
absl::StatusOr<at::Tensor> read_npy(const std::string& path);

/// Writes format 1.0, C order, atomically (write_file_atomically); the bytes are those of numpy.save. kInvalidArgument
/// for a dtype that NumPy lacks. Errors of the disk: exit code 6.
absl::Status write_npy(const std::string& path, const at::Tensor& tensor);

}  // namespace trainkit
