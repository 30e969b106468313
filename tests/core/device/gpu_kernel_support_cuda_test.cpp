// A separate file, because it is skipped without a GPU.
#include <torch/cuda.h>

#include "core/device/gpu_kernel_support.h"
#include "test_util.h"

using namespace trainkit;
using trainkit::detail::compiled_kernel_codes;
using trainkit::detail::kernel_code_for;
using trainkit::detail::parse_kernel_codes;

TEST_CASE("A GPU has kernels if code for its capability is compiled in, and the warning is logged once") {
  if (!torch::cuda::is_available()) TRAINKIT_SKIP("no GPU that LibTorch can use");
  const at::Device device(at::kCUDA, 0);
  const int capability = trainkit::detail::compute_capability(device);
  const bool expected = kernel_code_for(parse_kernel_codes(compiled_kernel_codes()), capability).has_value();
  CHECK(trainkit::has_gpu_kernels(device) == expected);
  CHECK(trainkit::detail::missing_kernels_warning(device).empty());
}
