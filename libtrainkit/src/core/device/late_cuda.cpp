#include "core/device/late_cuda.h"

#include <ATen/Version.h>
#include <dlfcn.h>

#include <string>

// Note [Late CUDA]
// ~~~~~~~~~~~~~~~~
// libtorch_cuda.so takes half of the time and three fifths of the memory of a program's start (0.16 s and 222 MiB on
// a machine without a GPU). LibTorch's CMake package links it into every program. trainkit_late_cuda() of
// TrainkitTargets.cmake removes it from the list of libraries that the loader opens at the start of our programs. On a
// machine with NVIDIA's driver a constructor loads it before main(), so that LibTorch finds its CUDA operations when it
// looks for them first. Without the driver nothing can call it.
//
// The linker still checks every symbol, because the list changes after linking. The loader looks functions up at their
// first call and finds those of libraries that were loaded with RTLD_GLOBAL. It looks variables and virtual tables up
// at the start: a program that uses one of libtorch_cuda.so does not start. libc10_cuda.so and CUDA's runtime are small
// and stay in the list.

namespace trainkit::detail {

bool load_torch_cuda() {
  if (dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD) != nullptr) return true;
  Dl_info cpu;
  if (dladdr(reinterpret_cast<const void*>(&at::show_config), &cpu) == 0) return false;
  const std::string file = cpu.dli_fname, folder = file.substr(0, file.rfind('/') + 1);
  return dlopen((folder + "libtorch_cuda.so").c_str(), RTLD_LAZY | RTLD_GLOBAL) != nullptr;
}

}  // namespace trainkit::detail

// The name makes the linker take this file from the archive (trainkit_late_cuda()).
extern "C" __attribute__((constructor)) void trainkit_load_torch_cuda_for_driver() {
  if (dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) != nullptr) trainkit::detail::load_torch_cuda();
}
