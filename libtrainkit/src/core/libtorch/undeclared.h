#pragma once
/// What LibTorch exports but declares in no header. New versions may change it: `nm -DC libtorch_cpu.so` shows whether
/// a version still has it.
#include <ATen/core/Tensor.h>

namespace at::native {

/// Computes result = beta * result + alpha * mat1 mat2 with oneDNN. In libtorch_cpu 2.11 to 2.15
/// (aten/src/ATen/native/mkldnn).
void mkldnn_matmul(const Tensor& mat1, const Tensor& mat2, const Tensor& result, float beta, float alpha);

}  // namespace at::native
