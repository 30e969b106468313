#include <ATen/Parallel.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>

#include "core/base/option_problems.h"
#include "optim/rows_of.h"
#include "trainkit/core/vectorized.h"
#include "trainkit/optim/adam.h"

namespace trainkit {
namespace {

// Note [Rows of SparseAdam]
//
// torch.optim.SparseAdam moves old + (1 - beta) * (new - old) in the rows of the gradient, and adds a step of
// lr * sqrt(1 - beta2^n) / (1 - beta1^n) to the weights: eps is outside the bias correction, unlike in Adam. The bits
// are PyTorch's only if each operation rounds by itself, so this file is compiled without contraction to fused
// multiply-add. (PyTorch calls MKL for square roots in float32, which are not always the nearest numbers.)

constexpr int64_t kGrain = 16384;  // values of a task

struct RowFactors {
  float one_minus_beta1, one_minus_beta2, eps, negative_step_size;
};

/// Updates `rows` rows of `width` values, whose places in the tables are `indices`.
TRAINKIT_VECTORIZED void update_float_rows(float* param, float* exp_avg, float* exp_avg_sq, const float* gradient,
                                           const int64_t* indices, int64_t rows, int64_t width, RowFactors by) {
  for (int64_t r = 0; r < rows; ++r) {
    float* __restrict p = param + indices[r] * width;
    float* __restrict m = exp_avg + indices[r] * width;
    float* __restrict v = exp_avg_sq + indices[r] * width;
    const float* __restrict g = gradient + r * width;
    for (int64_t k = 0; k < width; ++k) {
      m[k] += (g[k] - m[k]) * by.one_minus_beta1;
      v[k] += (g[k] * g[k] - v[k]) * by.one_minus_beta2;
      p[k] += m[k] / (std::sqrt(v[k]) + by.eps) * by.negative_step_size;
    }
  }
}

bool has_float_rows(const at::Tensor& param, const at::Tensor& gradient) {
  return param.is_cpu() && param.scalar_type() == at::kFloat && param.is_contiguous() && gradient.sparse_dim() == 1 &&
         gradient._values().is_contiguous() && gradient._indices().is_contiguous();
}

}  // namespace

SparseAdam::SparseAdam(const SparseAdamOptions& options)
    : Adam({.lr = options.lr, .takes_sparse = true}, options.betas, options.eps) {
  detail::OptionProblems problems;
  problems.require(detail::finite_not_negative(options.lr), "lr", "finite and >= 0", options.lr)
      .require(false, option_problems());
  TORCH_CHECK_VALUE(problems.empty(), "SparseAdam: ", problems.text());
}

std::unique_ptr<Optimizer> SparseAdam::create_like() const {
  const AdamOptions mine = options();
  return std::make_unique<SparseAdam>(SparseAdamOptions{.lr = mine.lr, .betas = mine.betas, .eps = mine.eps});
}

void SparseAdam::reserve(const ParamGroup& group) {
  Adam::reserve(group);
  TORCH_CHECK_VALUE(group.weight_decay.value_or(0) == 0, "SparseAdam: no weight decay, got ", *group.weight_decay,
                    " for the group of '", group.params.front().name, "': set it to 0, or use AdamW");
}

void SparseAdam::apply(const FusedArguments& a) {
  std::vector<at::Tensor> params, gradients, steps;
  std::vector<std::vector<at::Tensor>> state(2);
  for (size_t i = 0; i < a.params.size(); ++i) {
    if (a.gradients[i].is_sparse()) {
      update_rows(a, i);
      continue;
    }
    params.push_back(a.params[i]);
    gradients.push_back(a.gradients[i]);
    steps.push_back(a.steps[i]);
    for (size_t k = 0; k < 2; ++k) state[k].push_back(a.state[k][i]);
  }
  if (params.empty()) return;
  Adam::apply({.params = params,
               .gradients = gradients,
               .state = state,
               .steps = steps,
               .lr = a.lr,
               .device_lr = a.device_lr,
               .weight_decay = a.weight_decay,
               .found_inf = a.found_inf,
               .orthogonalize = a.orthogonalize});
}

/// Returns -lr sqrt(1 - beta2^n) / (1 - beta1^n) for step n of parameter i: a float64 scalar, on the parameter's device
/// unless it is a number of the host. Does not synchronise.
at::Tensor SparseAdam::negative_step_size(const FusedArguments& a, size_t i) const {
  if (a.steps[i].is_cpu()) {
    const double lr = a.device_lr.defined() ? *a.device_lr.const_data_ptr<float>() : a.lr;
    const double n = *a.steps[i].const_data_ptr<float>();
    return at::scalar_tensor(-(lr * std::sqrt(1 - std::pow(betas_[1], n)) / (1 - std::pow(betas_[0], n))), at::kDouble);
  }
  const at::Tensor n = a.steps[i].to(at::kDouble);
  at::Tensor size = at::pow(betas_[1], n).neg_().add_(1).sqrt_().div_(at::pow(betas_[0], n).neg_().add_(1));
  return a.device_lr.defined() ? size.mul_(a.device_lr).neg_() : size.mul_(-a.lr);
}

/// See Note [Rows of SparseAdam]. With found_inf the device decides: weights and state then keep their bits.
void SparseAdam::update_rows(const FusedArguments& a, size_t i) const {
  at::Tensor param = a.params[i], exp_avg = a.state[0][i], exp_avg_sq = a.state[1][i];
  const at::Tensor &gradient = a.gradients[i], values = gradient._values();
  if (values.numel() == 0) return;
  const bool decides_here = a.found_inf && a.found_inf->is_cpu();
  if (decides_here && *a.found_inf->const_data_ptr<float>() != 0) return;
  const at::Tensor step_size = negative_step_size(a, i);
  if (has_float_rows(param, gradient)) {
    const int64_t rows = values.size(0), width = values.numel() / rows;
    auto *p = param.mutable_data_ptr<float>(), *m = exp_avg.mutable_data_ptr<float>(),
         *v = exp_avg_sq.mutable_data_ptr<float>();
    const auto* g = values.const_data_ptr<float>();
    const auto* indices = gradient._indices().const_data_ptr<int64_t>();
    const RowFactors by = {static_cast<float>(1 - betas_[0]), static_cast<float>(1 - betas_[1]),
                           static_cast<float>(eps_), static_cast<float>(*step_size.const_data_ptr<double>())};
    at::parallel_for(0, rows, std::max<int64_t>(1, kGrain / width), [&](int64_t begin, int64_t end) {
      update_float_rows(p, m, v, g + begin * width, indices + begin, end - begin, width, by);
    });
    return;
  }
  const std::vector<at::indexing::TensorIndex> places = detail::rows_of(gradient);
  const at::Tensor old_avg = exp_avg.index(places), old_avg_sq = exp_avg_sq.index(places), old = param.index(places);
  at::Tensor avg = values.sub(old_avg).mul_(1 - betas_[0]).add_(old_avg);
  at::Tensor avg_sq = values.pow(2).sub_(old_avg_sq).mul_(1 - betas_[1]).add_(old_avg_sq);
  at::Tensor now = avg.div(avg_sq.sqrt().add_(eps_)).mul_(step_size).add_(old);
  if (a.found_inf && !decides_here) {
    const at::Tensor skip = a.found_inf->to(at::kBool);
    avg = at::where(skip, old_avg, avg);
    avg_sq = at::where(skip, old_avg_sq, avg_sq);
    now = at::where(skip, old, now);
  }
  exp_avg.index_put_(places, avg);
  exp_avg_sq.index_put_(places, avg_sq);
  param.index_put_(places, now);
}

}  // namespace trainkit
