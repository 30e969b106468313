#pragma once
/// Pictures as PNG files.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>

#include <string>

namespace trainkit {

/// Writes `image`, (height, width, 3) uint8, atomically (write_file_atomically). The bytes depend on the image alone.
/// Errors of the disk: exit code 6. Throws c10::ValueError for another shape or dtype, or a side of 0 or over 65,535.
absl::Status write_png(const std::string& path, const at::Tensor& image);

}  // namespace trainkit
