#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <vector>

#include "trainkit/optim/optimizer.h"

namespace trainkit {

at::Tensor clip_grad_norm_(Optimizer& optimizer, double max_norm) {
  optimizer.gradients_taken_as_unscaled("clip_grad_norm_");
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> gradients = optimizer.gradients();
  if (gradients.empty()) return at::zeros_like(optimizer.step_count());
  at::Tensor norm = at::linalg_vector_norm(at::stack(at::_foreach_norm(gradients, 2)), 2);
  if (optimizer.is_sharded()) {
    norm.square_();
    optimizer.sum_over_shards(norm);
    norm.sqrt_();
  }
  if (max_norm > 0 && std::isfinite(max_norm)) {
    at::_foreach_mul_(gradients, norm.add(1e-6).reciprocal_().mul_(max_norm).clamp_max_(1.0));
  }
  return norm;
}

}  // namespace trainkit
