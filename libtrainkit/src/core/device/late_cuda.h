#pragma once
/// Loads LibTorch's CUDA library when a program starts, if the machine has NVIDIA's driver.

namespace trainkit::detail {

/// Loads libtorch_cuda.so from the folder of libtorch_cpu.so, unless it is loaded. Returns whether it is loaded: false
/// for a LibTorch without CUDA. Thread-safe. See Note [Late CUDA].
bool load_torch_cuda();

}  // namespace trainkit::detail
