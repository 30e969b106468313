#pragma once
/// For programs with kernels of their own: whether a kernel can run, and whether a step on the CPU plans a GPU's.

#include <c10/core/Device.h>

namespace trainkit {

/// Returns whether this build's CUDA kernels, and those that a program compiles for the same architectures
/// (TORCH_CUDA_ARCH_LIST), run on a CUDA device. Elsewhere use LibTorch's operations. Throws c10::Error in a build
/// without CUDA. Cached. Never synchronises, so it may be called during the capture of a CUDA graph. The first call for
/// a device without kernels warns through TORCH_WARN.
bool has_gpu_kernels(c10::Device device);

/// Returns whether this thread plans the memory of a GPU: it runs a step on the CPU with the operations of a GPU. An
/// operation with a faster way on the CPU that allocates other tensors must not take it then.
bool plans_gpu_memory();

}  // namespace trainkit
