#include "trainkit/rl/ppo_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/max.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "core/device/gpu_operations.h"
#include "core/libtorch/autograd_nodes.h"
#include "core/machine/shapes_only.h"

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

LossOutput loss_by_operations(const PpoTerms& terms, const PpoOptions& options) {
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

// For small batches on the CPU the operations above and their backward take as long as the networks. The loss and its
// gradients are therefore made in one pass over the rows, and backward multiplies them by the incoming gradient.

struct PpoLossBackward final : torch::autograd::Node {
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override {
    TORCH_CHECK(log_prob.defined(), "ppo_loss: backward ran before; use retain_graph to run it again");
    TORCH_CHECK_NOT_IMPLEMENTED(!c10::GradMode::is_enabled(),
                                "ppo_loss has no second derivative (create_graph) in float32 on the CPU");
    if (!grads[0].defined()) return {at::Tensor(), at::Tensor(), at::Tensor()};
    const at::Tensor& incoming = grads[0];
    const bool is_one = detail::host_value(incoming) == 1;
    const auto times = [&](const at::Tensor& gradient) { return is_one ? gradient : gradient * incoming; };
    return {times(log_prob), times(entropy).expand(log_prob.sizes()), times(value)};
  }
  void release_variables() override { log_prob = entropy = value = at::Tensor(); }
  std::string name() const override { return "PpoLossBackward"; }

  at::Tensor log_prob, entropy, value;  // gradients; that of the entropy is the same for all rows
};

struct PpoSums {
  double policy = 0, value = 0, entropy = 0, kl = 0, clipped = 0;
};

/// The larger of two losses and its derivative. Of equal ones each has half of the derivative, as in at::max.
struct Larger {
  Larger(float first, float second, float first_derivative, float second_derivative)
      : loss(first > second ? first : second),
        derivative(first > second    ? first_derivative
                   : first == second ? 0.5F * (first_derivative + second_derivative)
                                     : second_derivative) {}
  float loss, derivative;
};

/// Sums over the rows; the gradients are those of the mean.
PpoSums sum_rows(const PpoTerms& terms, const PpoOptions& options, float* log_prob_gradient, float* value_gradient) {
  const auto read = [](const at::Tensor& tensor) { return tensor.const_data_ptr<float>(); };
  const float *log_prob = read(terms.log_prob), *old_log_prob = read(terms.old_log_prob),
              *advantage = read(terms.advantage), *entropy = read(terms.entropy), *value = read(terms.value),
              *returns = read(terms.returns), *old_value = options.value_clip > 0 ? read(terms.old_value) : nullptr;
  const int64_t rows = terms.log_prob.numel();
  const float scale = 1.0F / static_cast<float>(rows), value_scale = scale * static_cast<float>(options.value_weight);
  const auto lowest = static_cast<float>(1 - options.clip), highest = static_cast<float>(1 + options.clip);
  const auto reach = static_cast<float>(options.value_clip);
  PpoSums sums;
  for (int64_t i = 0; i < rows; ++i) {
    const float log_ratio = log_prob[i] - old_log_prob[i], ratio = std::exp(log_ratio);
    const float plain = -advantage[i] * ratio, clipped = -advantage[i] * std::clamp(ratio, lowest, highest);
    const bool is_inside = ratio >= lowest && ratio <= highest;
    const Larger policy(plain, clipped, plain, is_inside ? plain : 0);
    sums.policy += static_cast<double>(policy.loss);
    log_prob_gradient[i] = scale * policy.derivative;

    const float error = value[i] - returns[i];
    float loss = error * error, derivative = error;
    if (old_value) {
      const float change = value[i] - old_value[i];
      const float moved = old_value[i] + std::clamp(change, -reach, reach) - returns[i];
      const Larger larger(loss, moved * moved, error, std::abs(change) <= reach ? moved : 0);
      loss = larger.loss;
      derivative = larger.derivative;
    }
    sums.value += 0.5 * static_cast<double>(loss);
    value_gradient[i] = value_scale * derivative;

    sums.entropy += static_cast<double>(entropy[i]);
    sums.kl += static_cast<double>(ratio - 1 - log_ratio);
    sums.clipped += std::abs(ratio - 1) > static_cast<float>(options.clip) ? 1 : 0;
  }
  return sums;
}

bool is_one_pass(const PpoTerms& terms, const PpoOptions& options) {
  if (detail::GpuOperations::wanted() || terms.log_prob.numel() == 0) return false;
  const auto fits = [](const at::Tensor& tensor) {
    return tensor.is_cpu() && tensor.scalar_type() == at::kFloat && tensor.is_contiguous();
  };
  return fits(terms.log_prob) && fits(terms.entropy) && fits(terms.value) && fits(terms.old_log_prob) &&
         fits(terms.advantage) && fits(terms.returns) && (options.value_clip == 0 || fits(terms.old_value));
}

LossOutput loss_in_one_pass(const PpoTerms& terms, const PpoOptions& options) {
  const auto rows = static_cast<double>(terms.log_prob.numel());
  const auto node = detail::make_node<PpoLossBackward>();
  PpoSums sums;
  std::optional<LossOutput> output;
  {
    const at::NoGradGuard no_grad;
    node->log_prob = at::empty(terms.log_prob.sizes(), terms.log_prob.options());
    node->value = at::empty(terms.log_prob.sizes(), terms.log_prob.options());
    node->entropy = at::scalar_tensor(-options.entropy_weight / rows, terms.log_prob.options());
    if (!detail::shapes_only()) {
      sums = sum_rows(terms, options, node->log_prob.mutable_data_ptr<float>(), node->value.mutable_data_ptr<float>());
    }
    const auto mean = [&](double sum) { return at::scalar_tensor(sum / rows, terms.log_prob.options()); };
    output.emplace(mean(sums.policy + options.value_weight * sums.value - options.entropy_weight * sums.entropy));
    output->metrics = {{"policy_loss", mean(sums.policy)},
                       {"value_loss", mean(sums.value)},
                       {"entropy", mean(sums.entropy)},
                       {"kl", mean(sums.kl)},
                       {"clip_fraction", mean(sums.clipped)}};
  }
  if (torch::autograd::compute_requires_grad(terms.log_prob, terms.entropy, terms.value)) {
    node->set_next_edges(torch::autograd::collect_next_edges(terms.log_prob, terms.entropy, terms.value));
    torch::autograd::set_history(output->loss, node);
  }
  return *std::move(output);
}

}  // namespace

LossOutput ppo_loss(const PpoTerms& terms, const PpoOptions& options) {
  check_terms(terms, options);
  return is_one_pass(terms, options) ? loss_in_one_pass(terms, options) : loss_by_operations(terms, options);
}

}  // namespace trainkit
