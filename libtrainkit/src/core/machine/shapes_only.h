#pragma once
/// Tells whether operations of this thread compute values. See memory/shape_operations.h.

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace trainkit::detail {

/// Below autograd, so graphs and gradients are recorded as always; LibTorch itself registers nothing for it.
inline constexpr auto kShapesKey = c10::DispatchKey::Fake;

/// Returns whether operations of this thread allocate their results and compute nothing. The library's own kernels do
/// the same: each asks before its loop.
inline bool shapes_only() {
  return c10::impl::tls_is_dispatch_key_included(kShapesKey) && !c10::impl::tls_is_dispatch_key_excluded(kShapesKey);
}

/// Makes operations compute until the end of the scope.
class ComputeValues {
  c10::impl::ExcludeDispatchKeyGuard guard_{kShapesKey};
};

/// Reads a scalar of the host that does not change the memory of a step. An uncomputed one is 0.
inline double host_value(const at::Tensor& scalar) {
  if (scalar.scalar_type() == at::kFloat) return *scalar.const_data_ptr<float>();
  const ComputeValues compute;
  return scalar.item<double>();
}

}  // namespace trainkit::detail
