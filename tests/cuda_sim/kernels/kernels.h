#pragma once
// Our kernels' bodies, compiled for the host from the .cu files, and the execution of a grid.
#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>
#include <vector>

#include "sim.h"

namespace cuda_sim {

struct Launch {
  dim3 grid, block;
  size_t shared_bytes;
  int device;
  std::vector<std::vector<std::byte>> arguments;  // copied at launch
};

/// Result of a launch. An error is sticky, as on a device; its finding has been reported.
struct Outcome {
  cudaError_t error = cudaSuccess;
  std::vector<Access> accesses;  // device addresses that it read or wrote, merged, in units of 4 bytes
};

struct Kernel {
  std::string name;  // as in the source, with template arguments: "norm_kernel<float, float, 4>"
  std::vector<size_t> argument_bytes;
  std::vector<bool> argument_is_pointer;
  void (*body)(const std::byte* const* arguments);  // of one thread; called by run
  /// Runs all threads of the grid in the calling thread.
  Outcome (*run)(const Kernel& kernel, const Launch& launch);
};

/// The host body of a kernel that __cudaRegisterFunction names (mangled); nullptr if it is not ours.
const Kernel* find_kernel(const std::string& mangled_name);

/// The device address of the byte at `backing`, allocated or not; nullptr if it belongs to no device. Part of the
/// runtime.
const void* device_address(const void* backing);

}  // namespace cuda_sim
