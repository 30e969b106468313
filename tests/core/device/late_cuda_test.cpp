#include "core/device/late_cuda.h"

#include <ATen/detail/CUDAHooksInterface.h>
#include <dlfcn.h>

#include <catch2/catch.hpp>

using namespace trainkit::detail;

namespace {

bool is_loaded(const char* library) { return dlopen(library, RTLD_LAZY | RTLD_NOLOAD) != nullptr; }

}  // namespace

TEST_CASE("A program starts without libtorch_cuda.so on a machine without NVIDIA's driver", "[late_cuda]") {
  const bool has_driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) != nullptr;
  CHECK(is_loaded("libtorch_cpu.so"));
  CHECK(is_loaded("libtorch_cuda.so") == has_driver);
  CHECK(at::CUDAHooksRegistry()->Has("CUDAHooks") == has_driver);
  CHECK(load_torch_cuda());
  CHECK(is_loaded("libtorch_cuda.so"));
  CHECK(at::CUDAHooksRegistry()->Has("CUDAHooks"));
}
