// Gathers, flips and rotates patches on the GPU: one block per row of each patch; its threads share the bands.
#include <cuda_runtime.h>

#include "imagery/patch_gather.h"

namespace trainkit::detail {
namespace {

constexpr int kThreads = 256;

/// Copies elements of type Vector (float, float2, float4). `bands` and the strides count these elements.
template <class Vector>
__global__ void gather_patches_kernel(const Vector* __restrict__ image, int64_t pixels_in_image, int64_t width,
                                      int64_t row_stride, int bands, int patch_size, const int64_t* __restrict__ pixels,
                                      const uint8_t* __restrict__ orientations, int64_t rows,
                                      Vector* __restrict__ out) {
  const int row_vectors = patch_size * bands;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const int64_t n = row / patch_size;
    const int i = static_cast<int>(row - n * patch_size);
    const int64_t pixel = pixels[n];
    if (pixel < 0 || pixel >= pixels_in_image) __trap();
    const unsigned orientation = orientations ? orientations[n] : 0;
    const Vector* corner = image + pixel / width * row_stride + pixel % width * bands;
    for (int at = threadIdx.x; at < row_vectors; at += blockDim.x) {
      const int j = at / bands;
      int r = orientation & 4 ? j : i, c = orientation & 4 ? i : j;
      if (orientation & 1) r = patch_size - 1 - r;
      if (orientation & 2) c = patch_size - 1 - c;
      out[row * row_vectors + at] = corner[r * row_stride + static_cast<int64_t>(c) * bands + (at - j * bands)];
    }
  }
}

template <class Vector>
void launch(const PatchSource& source, const int64_t* pixels, const uint8_t* orientations, int64_t count, float* out,
            cudaStream_t stream) {
  constexpr int kFloats = sizeof(Vector) / sizeof(float);
  const int64_t rows = count * source.patch_size;
  const auto blocks = static_cast<unsigned>(rows < (int64_t{1} << 20) ? rows : int64_t{1} << 20);
  gather_patches_kernel<Vector><<<blocks, kThreads, 0, stream>>>(
      reinterpret_cast<const Vector*>(source.image), source.pixels(), source.width, source.row_stride() / kFloats,
      static_cast<int>(source.bands / kFloats), static_cast<int>(source.patch_size), pixels, orientations, rows,
      reinterpret_cast<Vector*>(out));
}

bool aligned(const float* image, const float* out, size_t bytes) {
  return reinterpret_cast<uintptr_t>(image) % bytes == 0 && reinterpret_cast<uintptr_t>(out) % bytes == 0;
}

}  // namespace

int launch_gather_patches(const PatchSource& source, const int64_t* pixels, const uint8_t* orientations, int64_t count,
                          float* out, void* stream) {
  if (count == 0) return cudaSuccess;
  auto* const on = static_cast<cudaStream_t>(stream);
  if (source.bands % 4 == 0 && aligned(source.image, out, sizeof(float4))) {
    launch<float4>(source, pixels, orientations, count, out, on);
  } else if (source.bands % 2 == 0 && aligned(source.image, out, sizeof(float2))) {
    launch<float2>(source, pixels, orientations, count, out, on);
  } else {
    launch<float>(source, pixels, orientations, count, out, on);
  }
  return cudaGetLastError();
}

}  // namespace trainkit::detail
