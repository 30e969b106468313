#include "trainkit/rl/ppo_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/max.h>
#include <c10/util/Exception.h>

#include <cmath>

namespace trainkit {
namespace {

void check_terms(const PpoTerms& terms, const PpoOptions& options) {
  TORCH_CHECK_VALUE(options.clip > 0 && std::isfinite(options.clip), "ppo_loss: clip must be > 0, got ", options.clip);
  TORCH_CHECK_VALUE(options.value_clip >= 0 && std::isfinite(options.value_clip),
                    "ppo_loss: value_clip must be >= 0, got ", options.value_clip);
  TORCH_CHECK_VALUE(options.value_clip == 0 || terms.old_value.defined(), "ppo_loss: value_clip needs old_value");
  const auto check = [&](const char* name, const at::Tensor& tensor) {
    TORCH_CHECK_VALUE(tensor.defined(), "ppo_loss: ", name, " is missing");
    TORCH_CHECK_VALUE(tensor.dim() == 1 && tensor.sizes() == terms.log_prob.sizes(), "ppo_loss: ", name,
                      " must have shape (N), that of log_prob, got ", tensor.sizes(), " and ", terms.log_prob.sizes());
  };
  TORCH_CHECK_VALUE(terms.log_prob.defined(), "ppo_loss: log_prob is missing");
  check("log_prob", terms.log_prob);
  check("entropy", terms.entropy);
  check("value", terms.value);
  check("old_log_prob", terms.old_log_prob);
  check("advantage", terms.advantage);
  check("returns", terms.returns);
  if (options.value_clip > 0) check("old_value", terms.old_value);
}

at::Tensor value_loss(const PpoTerms& terms, double value_clip) {
  const at::Tensor error = (terms.value - terms.returns).square();
  if (value_clip == 0) return 0.5 * error.mean();
  const at::Tensor moved = terms.old_value + (terms.value - terms.old_value).clamp(-value_clip, value_clip);
  return 0.5 * at::max(error, (moved - terms.returns).square()).mean();
}

}  // namespace

LossOutput ppo_loss(const PpoTerms& terms, const PpoOptions& options) {
  check_terms(terms, options);
  const at::Tensor log_ratio = terms.log_prob - terms.old_log_prob;
  const at::Tensor ratio = log_ratio.exp();
  const at::Tensor clipped = ratio.clamp(1 - options.clip, 1 + options.clip);
  const at::Tensor policy = at::max(-terms.advantage * ratio, -terms.advantage * clipped).mean();
  const at::Tensor value = value_loss(terms, options.value_clip);
  const at::Tensor entropy = terms.entropy.mean();
  LossOutput output(policy + options.value_weight * value - options.entropy_weight * entropy);
  const at::NoGradGuard no_grad;
  output.metrics = {{"policy_loss", policy.detach()},
                    {"value_loss", value.detach()},
                    {"entropy", entropy.detach()},
                    {"kl", (ratio - 1 - log_ratio).mean()},
                    {"clip_fraction", (ratio - 1).abs().gt(options.clip).to(ratio.scalar_type()).mean()}};
  return output;
}

}  // namespace trainkit
