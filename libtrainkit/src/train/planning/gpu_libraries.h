#pragma once
// Predicts the memory that CUDA's libraries take from LibTorch's allocator, from a step recorded on the CPU.

#include <ATen/record_function.h>
#include <c10/core/Device.h>

#include <cstdint>

#include "memory/memory_recorder.h"
#include "trainkit/train/step_memory.h"

namespace trainkit::detail {

/// Returns the workspace sizes of a CUDA device of this machine; for any other device the defaults of GpuLibraries.
GpuLibraries gpu_libraries(c10::Device device);

/// Frees the workspaces that cuBLAS and cuBLASLt have on all devices; their next use allocates new ones. The devices
/// must be idle. Does nothing without CUDA.
void free_library_workspaces();

/// Adds GPU workspaces to a recording, for the operations that this thread runs during the object's lifetime. Kept
/// workspaces are two: one for forward and update, one for backward. Temporary memory of the CPU's convolutions becomes
/// MemoryClass::kWorkspace. Without cuDNN the column buffers of LibTorch's own convolutions are added.
class LibraryWatch {
 public:
  /// Does nothing unless `on`.
  LibraryWatch(MemoryRecorder& recorder, const GpuLibraries& libraries, bool on);
  ~LibraryWatch();
  LibraryWatch(const LibraryWatch&) = delete;
  LibraryWatch& operator=(const LibraryWatch&) = delete;

  /// Selects the thread that operations belong to. On CUDA, autograd runs backward in its own thread.
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
