#pragma once
/// Patch gathering on plain memory: on the CPU and with CUDA.

#include <cstddef>
#include <cstdint>

namespace trainkit::detail {

/// A padded image and the size of its patches.
struct PatchSource {
  const float* image = nullptr;
  /// Size of the image without its padding.
  int64_t height = 0, width = 0;
  int64_t bands = 0;
  int64_t patch_size = 1;

  int64_t pixels() const { return height * width; }
  int64_t row_stride() const { return (width + patch_size - 1) * bands; }
  int64_t patch_floats() const { return patch_size * patch_size * bands; }
};

/// Writes `count` patches to `out`, one after the other, in the calling thread. `orientations` may be null. `streaming`
/// bypasses the cache.
void copy_patches(const PatchSource& source, const int64_t* pixels, const uint8_t* orientations, int64_t count,
                  float* out, bool streaming);

/// Launches the CUDA kernel for the same on `stream` (a cudaStream_t), with pointers to memory of the current device.
/// Returns the cudaError_t of the launch.
int launch_gather_patches(const PatchSource& source, const int64_t* pixels, const uint8_t* orientations, int64_t count,
                          float* out, void* stream);

}  // namespace trainkit::detail
