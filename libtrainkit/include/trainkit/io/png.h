#pragma once
/// Writes images as PNG files.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>

#include <string>

namespace trainkit {

/// Writes `image`, (height, width, 3) uint8, atomically (write_file_atomically). The bytes depend only on the image.
/// Disk errors: exit code 6. Throws c10::ValueError for another shape or dtype, and for a height or width of 0 or over
/// 65,535.
absl::Status write_png(const std::string& path, const at::Tensor& image);

}  // namespace trainkit
