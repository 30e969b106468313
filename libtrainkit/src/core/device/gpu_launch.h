#pragma once
// Launches the kernels of this library from code that a C++ compiler compiles.
#ifdef TRAINKIT_WITH_CUDA

#include <c10/core/Device.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

namespace trainkit::detail {

/// Calls launch(stream) with the current stream of a GPU, as void*, and throws the cudaError_t that it returns as an
/// int. Does not wait for the kernel.
template <typename Launch>
void launch_on(c10::Device device, const Launch& launch) {
  const c10::cuda::CUDAGuard guard(device);
  C10_CUDA_CHECK(static_cast<cudaError_t>(launch(c10::cuda::getCurrentCUDAStream().stream())));
}

}  // namespace trainkit::detail

#endif
