// A separate file, because it is skipped without a GPU.
#include <ATen/ATen.h>

#include "core/device/gpu_operations.h"
#include "test_util.h"
#include "trainkit/imagery/patches.h"

using namespace trainkit;

TEST_CASE("Patches gathered on a GPU equal those of the CPU, by our kernel and by LibTorch's operations",
          "[data][patches][gpu]") {
  if (!at::hasCUDA()) TRAINKIT_SKIP("no GPU that LibTorch can use");
  const at::Tensor image = at::rand({8, 11, 16});
  const at::Tensor pixels = at::arange(54).repeat({8});
  const at::Tensor orientations = at::arange(pixels.numel()).div(54, "floor").to(at::kByte);
  const at::Tensor expected = gather_patches(image, pixels, 3, orientations);
  for (const bool has_kernels : {true, false}) {
    CAPTURE(has_kernels);
    const trainkit::detail::GpuOperations gpu(false, has_kernels);
    CHECK(gather_patches(image.cuda(), pixels.cuda(), 3, orientations.cuda()).cpu().equal(expected));
  }
}
