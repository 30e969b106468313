#include "trainkit/rl/distributions.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/atanh.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/tanh.h>

#include <cmath>
#include <limits>
#include <numbers>

namespace trainkit {
namespace {

/// The most negative number of a type: exp() of it is 0, and 0 times it is 0.
double lowest(at::ScalarType type) {
  return type == at::kDouble ? std::numeric_limits<double>::lowest() : std::numeric_limits<float>::lowest();
}

/// log |d tanh(u) / du|, summed over the last dimension.
at::Tensor log_derivative(const at::Tensor& u) { return (2 * (std::numbers::ln2 - u - at::softplus(-2 * u))).sum(-1); }

}  // namespace

Categorical::Categorical(const at::Tensor& logits, const at::Tensor& mask) {
  TORCH_CHECK_VALUE(logits.dim() >= 1, "Categorical: logits must have shape (..., K), got ", logits.sizes());
  TORCH_CHECK_TYPE(logits.scalar_type() == at::kFloat || logits.scalar_type() == at::kDouble,
                   "Categorical: logits must be float32 or float64, got ", logits.scalar_type());
  if (!mask.defined()) {
    log_probs_ = at::log_softmax(logits, -1);
    return;
  }
  TORCH_CHECK_VALUE(mask.scalar_type() == at::kBool && mask.sizes() == logits.sizes(),
                    "Categorical: mask must be bool ", logits.sizes(), ", got ", mask.scalar_type(), " ", mask.sizes());
  const double least = lowest(logits.scalar_type());
  log_probs_ = at::log_softmax(logits.masked_fill(~mask, least), -1).clamp_min(least);
}

at::Tensor Categorical::sample(const at::Generator& generator) const {
  const at::NoGradGuard no_grad;
  return log_probs_.exp().div_(at::empty_like(log_probs_).exponential_(1, generator)).argmax(-1);
}

at::Tensor Categorical::mode() const { return log_probs_.argmax(-1); }

at::Tensor Categorical::log_prob(const at::Tensor& action) const {
  return log_probs_.gather(-1, action.unsqueeze(-1)).squeeze(-1);
}

at::Tensor Categorical::entropy() const { return -(log_probs_.exp() * log_probs_).sum(-1); }

Normal::Normal(const at::Tensor& mean, const at::Tensor& std) : mean_(mean), std_(std) {
  TORCH_CHECK_VALUE(mean.dim() >= 1, "Normal: mean must have shape (..., A), got ", mean.sizes());
  TORCH_CHECK_VALUE(std.dim() <= mean.dim(), "Normal: std of shape ", std.sizes(), " does not fit a mean of shape ",
                    mean.sizes());
}

at::Tensor Normal::sample(const at::Generator& generator) const {
  return mean_ + std_ * at::empty(mean_.sizes(), mean_.options()).normal_(0, 1, generator);
}

at::Tensor Normal::log_prob(const at::Tensor& action) const {
  constexpr double kLogSqrt2Pi = 0.91893853320467274178;
  return (((action - mean_) / std_).square() * -0.5 - std_.log() - kLogSqrt2Pi).sum(-1);
}

at::Tensor Normal::entropy() const {
  constexpr double kHalfLog2PiE = 1.41893853320467274178;
  return (std_.log() + kHalfLog2PiE).expand_as(mean_).sum(-1);
}

std::pair<at::Tensor, at::Tensor> TanhNormal::sample(const at::Generator& generator) const {
  const at::Tensor u = normal_.sample(generator);
  return {u.tanh(), normal_.log_prob(u) - log_derivative(u)};
}

at::Tensor TanhNormal::mode() const { return normal_.mode().tanh(); }

at::Tensor TanhNormal::log_prob(const at::Tensor& action) const {
  const double edge = 1 - (action.scalar_type() == at::kDouble ? std::numeric_limits<double>::epsilon() / 2
                                                               : std::numeric_limits<float>::epsilon() / 2);
  const at::Tensor u = action.clamp(-edge, edge).atanh();
  return normal_.log_prob(u) - log_derivative(u);
}

at::Tensor TanhNormal::entropy_estimate(const at::Generator& generator) const { return -sample(generator).second; }

}  // namespace trainkit
