#pragma once
/// Whether our CUDA kernels run on a device: they are compiled for the architectures of TORCH_CUDA_ARCH_LIST alone.
/// Where they do not, the caller uses LibTorch's operations.

#include <c10/core/Device.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trainkit::detail {

/// Code that nvcc made for one architecture. Capabilities are 10 major + minor: 89 is 8.9.
struct KernelCode {
  int capability = 0;
  /// PTX, which the driver compiles on first use.
  bool is_ptx = false;
  /// 'a': runs on this capability alone. 'f': runs on its major version. '\0': neither.
  char suffix = '\0';

  /// nvcc's name: "sm_89", "sm_90a", "compute_120".
  std::string name() const;
};

/// Parses nvcc's names, separated by spaces. Skips what is none.
std::vector<KernelCode> parse_kernel_codes(std::string_view names);

/// The code that a device runs: machine code of its major version with the highest minor version up to its own, else
/// the latest PTX up to its capability; nullopt if there is none. A pure function.
/// Source: NVIDIA, CUDA C++ Programming Guide, "Binary Compatibility", "PTX Compatibility" and "Feature Availability".
std::optional<KernelCode> kernel_code_for(const std::vector<KernelCode>& codes, int capability);

/// nvcc's names of all code in this build; empty without CUDA.
const char* compiled_kernel_codes();

/// Compute capability of a CUDA device. Throws c10::Error without CUDA.
int compute_capability(c10::Device device);

/// Whether our kernels run on a CUDA device, and GpuOperations (core/gpu_operations.h) does not leave them out. Cached;
/// never synchronises, so it may be called while a CUDA graph is captured. The first call for a device without
/// kernels warns through TORCH_WARN, unless missing_kernels_warning() has returned the text before.
bool has_gpu_kernels(c10::Device device);

/// One sentence for people if a CUDA device has no kernels; empty if it has, and after the first time in a process.
std::string missing_kernels_warning(c10::Device device);

/// That sentence. A pure function.
std::string missing_kernels_text(int device, int capability, std::string_view codes);

}  // namespace trainkit::detail
