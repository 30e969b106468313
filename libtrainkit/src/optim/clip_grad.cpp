#include "optim/clip_grad.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>

namespace trainkit {

std::vector<at::Tensor> detail::clip_grad_norms_(const std::vector<Optimizer*>& optimizers, double max_norm) {
  const at::NoGradGuard no_grad;
  std::vector<std::vector<at::Tensor>> gradients;
  std::vector<at::Tensor> norms;
  for (Optimizer* optimizer : optimizers) {
    optimizer->gradients_taken_as_unscaled("clip_grad_norm_");
    gradients.push_back(optimizer->gradients());
    norms.push_back(gradients.back().empty()
                        ? at::zeros_like(optimizer->step_count())
                        : at::linalg_vector_norm(at::stack(at::_foreach_norm(gradients.back(), 2)), 2));
  }
  if (optimizers.front()->is_sharded()) {
    for (at::Tensor& norm : norms) norm.square_();
    optimizers.front()->sum_over_shards(norms);
    for (at::Tensor& norm : norms) norm.sqrt_();
  }
  if (!(max_norm > 0 && std::isfinite(max_norm))) return norms;
  std::vector<at::Tensor> factors;
  for (const at::Tensor& norm : norms) factors.push_back(norm.add(1e-6).reciprocal_().mul_(max_norm).clamp_max_(1.0));
  for (size_t i = 0; i < factors.size(); ++i) {
    if (!gradients[i].empty()) at::_foreach_mul_(gradients[i], factors[i]);
  }
  return norms;
}

at::Tensor clip_grad_norm_(Optimizer& optimizer, double max_norm) {
  return detail::clip_grad_norms_({&optimizer}, max_norm).front();
}

}  // namespace trainkit
