#pragma once
// Sparse gradients in order.

#include <ATen/core/Tensor.h>

namespace trainkit::detail {

/// Returns `gradient`, sparse, coalesced and without history: each row once, in ascending order. Autograd forgets that
/// a gradient was coalesced; on the CPU one that lists its rows in order is only marked so, and shares its memory.
at::Tensor coalesced(const at::Tensor& gradient);

}  // namespace trainkit::detail
