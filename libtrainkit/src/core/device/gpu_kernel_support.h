#pragma once
/// Whether this build's CUDA kernels run on a device (has_gpu_kernels). They are compiled only for the architectures in
/// TORCH_CUDA_ARCH_LIST; on other devices the caller uses LibTorch's operations.

#include <c10/core/Device.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainkit/core/gpu_kernels.h"

namespace trainkit::detail {

/// Code that nvcc generated for one architecture. Capabilities are 10 * major + minor: 89 is 8.9.
struct KernelCode {
  int capability = 0;
  /// True for PTX, which the driver compiles on first use.
  bool is_ptx = false;
  /// 'a': runs only on this capability. 'f': runs on its major version. '\0': no suffix.
  char suffix = '\0';

  /// nvcc's name: "sm_89", "sm_90a", "compute_120".
  std::string name() const;
};

/// Parses nvcc's names, separated by spaces. Skips other words.
std::vector<KernelCode> parse_kernel_codes(std::string_view names);

/// Selects the code that a device runs: machine code of its major version with the highest minor version up to its own,
/// else the latest PTX up to its capability; nullopt if there is none. A pure function.
/// Source: NVIDIA, CUDA C++ Programming Guide, "Binary Compatibility", "PTX Compatibility" and "Feature Availability".
std::optional<KernelCode> kernel_code_for(const std::vector<KernelCode>& codes, int capability);

/// Returns nvcc's names of all code in this build; empty without CUDA.
const char* compiled_kernel_codes();

/// Returns the compute capability of a CUDA device. Throws c10::Error without CUDA.
int compute_capability(c10::Device device);

/// Returns one sentence for the user if a CUDA device has no kernels; empty if it has, and from the second call on.
std::string missing_kernels_warning(c10::Device device);

/// Returns that sentence for any device. A pure function.
std::string missing_kernels_text(int device, int capability, std::string_view codes);

}  // namespace trainkit::detail
