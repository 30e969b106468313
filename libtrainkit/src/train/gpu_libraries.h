#pragma once
// The memory that CUDA's libraries take from LibTorch's allocator, found in a step that is recorded on the CPU.

#include <ATen/record_function.h>
#include <c10/core/Device.h>

#include <cstdint>

#include "memory/memory_recorder.h"
#include "trainkit/train/step_memory.h"

namespace trainkit::detail {

/// Of a CUDA device of this machine; of another device the defaults of GpuLibraries.
GpuLibraries gpu_libraries(c10::Device device);

/// While it lives, adds the workspaces that the operations of this thread would take on a GPU to a recording: of each
/// thread that calls cuBLAS, one that forward and the update share and one of backward. What a convolution takes for
/// its own time on the CPU becomes MemoryClass::kWorkspace; without cuDNN the columns of LibTorch's convolutions are
/// added.
class LibraryWatch {
 public:
  /// Nothing unless `on`.
  LibraryWatch(MemoryRecorder& recorder, const GpuLibraries& libraries, bool on);
  ~LibraryWatch();
  LibraryWatch(const LibraryWatch&) = delete;
  LibraryWatch& operator=(const LibraryWatch&) = delete;

  /// On CUDA, autograd runs backward in a thread of its own.
  void set_backward(bool backward) { thread_ = backward ? 1 : 0; }

 private:
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function);
  static void end(const at::RecordFunction& function, at::ObserverContext* context);
  void take(bool& has, int64_t bytes);

  MemoryRecorder& recorder_;
  const GpuLibraries libraries_;
  int thread_ = 0;
  bool has_cublas_[2] = {}, has_cublaslt_[2] = {};
  at::CallbackHandle handle_ = at::INVALID_CALLBACK_HANDLE;
};

}  // namespace trainkit::detail
