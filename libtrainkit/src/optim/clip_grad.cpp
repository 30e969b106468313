#include "optim/clip_grad.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>

#include "amp/scaling_state.h"
#include "core/tensors/tensor_lists.h"

namespace trainkit {

namespace detail {

static at::Tensor norm_of(const std::vector<at::Tensor>& gradients, const at::Tensor& step_count) {
  if (gradients.empty()) return step_count.defined() ? at::zeros_like(step_count) : at::zeros({});
  if (has_list_kernels(gradients)) return norm_by_kernel(gradients);
  return at::linalg_vector_norm(at::stack(norms_of(gradients)), 2);
}

std::vector<at::Tensor> clip_grad_norms_(const std::vector<Optimizer*>& optimizers, double max_norm) {
  const at::NoGradGuard no_grad;
  std::vector<std::vector<at::Tensor>> gradients;
  std::vector<at::Tensor> norms;
  for (Optimizer* optimizer : optimizers) {
    optimizer->gradients_taken_as_unscaled("clip_grad_norm_");
    gradients.push_back(optimizer->gradients());
    norms.push_back(norm_of(gradients.back(), optimizer->step_count()));
  }
  if (const SumOverShards& sum_over_shards = ScalingState::of(*optimizers.front())->sum_over_shards) {
    for (at::Tensor& norm : norms) norm.square_();
    sum_over_shards(norms);
    for (at::Tensor& norm : norms) norm.sqrt_();
  }
  if (!(max_norm > 0 && std::isfinite(max_norm))) return norms;
  // Of gradients without kernels; all before the first gradient changes, since an allocation may fail.
  std::vector<at::Tensor> factors(norms.size());
  for (size_t i = 0; i < norms.size(); ++i) {
    if (!has_list_kernels(gradients[i])) factors[i] = clip_factor(norms[i], max_norm);
  }
  for (size_t i = 0; i < norms.size(); ++i) {
    if (gradients[i].empty()) continue;
    if (factors[i].defined()) {
      at::_foreach_mul_(gradients[i], factors[i]);
    } else {
      scale_by_kernel(gradients[i], norms[i], max_norm);
    }
  }
  return norms;
}

}  // namespace detail

at::Tensor clip_grad_norm_(Optimizer& optimizer, double max_norm) {
  return detail::clip_grad_norms_({&optimizer}, max_norm).front();
}

}  // namespace trainkit
