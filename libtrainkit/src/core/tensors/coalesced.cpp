#include "core/tensors/coalesced.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <functional>

namespace trainkit::detail {

static bool is_in_order(const at::Tensor& gradient) {
  if (!gradient.is_cpu() || gradient.sparse_dim() != 1 || !gradient._indices().is_contiguous()) return false;
  const auto* first = gradient._indices().const_data_ptr<int64_t>();
  const auto* last = first + gradient._nnz();
  return std::adjacent_find(first, last, std::greater_equal<>()) == last;
}

at::Tensor coalesced(const at::Tensor& gradient) {
  const at::NoGradGuard no_grad;
  if (gradient.is_coalesced()) return gradient.detach();
  if (!is_in_order(gradient)) return gradient.detach().coalesce();
  return gradient.detach()._coalesced_(true);
}

}  // namespace trainkit::detail
