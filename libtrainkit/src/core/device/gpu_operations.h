#pragma once
/// Selects GPU operations on the CPU, for memory planning: a planning step on the CPU must allocate as a GPU would.

namespace trainkit::detail {

/// Makes models of this thread use the operations of a GPU, computed on the CPU, instead of the CPU's fused operations
/// (nn/gpu/fused_ops.h). The operations allocate the same tensors as on a GPU, so the memory of a step is that of the
/// same step on a GPU. Nests; the destructor restores the previous setting.
class GpuOperations {
 public:
  /// Does nothing unless `on`. Without `has_kernels`, selects the operations of a GPU on which this build's kernels do
  /// not run: LibTorch's. In this thread, that also applies to real GPUs that have kernels.
  explicit GpuOperations(bool on, bool has_kernels = true);
  ~GpuOperations();
  GpuOperations(const GpuOperations&) = delete;
  GpuOperations& operator=(const GpuOperations&) = delete;

  static bool wanted();
  /// Returns false while an object without kernels exists.
  static bool has_kernels();

 private:
  const bool was_wanted_, had_kernels_;
};

}  // namespace trainkit::detail
