#pragma once
/// Workspaces of cuBLAS in LibTorch's memory.
#include <c10/util/env.h>
#include <torch/version.h>

namespace trainkit::detail {

/// Whether LibTorch keeps a workspace for each thread and stream that has called cuBLAS. Since 2.15 it does so only
/// with TORCH_CUBLAS_WORKSPACE_CACHE=1; otherwise each operation allocates its own and frees it at its end.
inline bool keeps_blas_workspaces() {
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 15
  return true;
#else
  return c10::utils::check_env("TORCH_CUBLAS_WORKSPACE_CACHE") == true;
#endif
}

}  // namespace trainkit::detail
