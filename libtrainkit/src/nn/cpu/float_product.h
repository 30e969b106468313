#pragma once
/// Products of 16-bit matrices that are not rounded to 16 bits.

#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

#include "core/device/gpu_operations.h"
#include "core/machine/shapes_only.h"

namespace trainkit::detail {

/// Computes out = a b, or out += a b with `adds`, in float32 from a and b of any dtype.
inline void float_product_out(at::Tensor out, const at::Tensor& a, const at::Tensor& b, bool adds) {
  if (a.scalar_type() == at::kFloat) {
    adds ? at::addmm_out(out, out, a, b) : at::mm_out(out, a, b);
  } else if (out.is_cpu() &&
             !(shapes_only() && GpuOperations::wanted())) {  // the CPU has no product with another result dtype
    float_product_out(out, a.to(at::kFloat), b.to(at::kFloat), adds);
  } else {
    adds ? at::addmm_out(out, out, a, b, at::kFloat) : at::mm_out(out, a, b, at::kFloat);
  }
}

}  // namespace trainkit::detail
