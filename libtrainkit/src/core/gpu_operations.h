#pragma once
/// Memory is planned for a GPU by steps on the CPU: these have to take the operations that a GPU would.

namespace trainkit::detail {

/// While one lives, models leave the CPU's fused operations out in this thread and take those of a GPU instead,
/// computed on the CPU with the tensors that they take there (nn/fused_ops.h), so that the memory of a step is that of
/// the same step on a GPU.
class GpuOperations {
 public:
  /// Nothing unless `on`. Without `has_kernels` they are those of a GPU that our kernels do not run on: LibTorch's, in
  /// this thread also on GPUs that have kernels.
  explicit GpuOperations(bool on, bool has_kernels = true);
  ~GpuOperations();
  GpuOperations(const GpuOperations&) = delete;
  GpuOperations& operator=(const GpuOperations&) = delete;

  static bool wanted();
  /// False while one without kernels lives.
  static bool has_kernels();

 private:
  const bool before_, had_kernels_;
};

}  // namespace trainkit::detail
