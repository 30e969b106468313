#include "trainkit/optim/adam.h"

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <c10/util/Exception.h>

#include "core/base/option_problems.h"
#include "core/device/gpu_launch.h"
#include "core/tensors/tensor_lists.h"
#ifdef TRAINKIT_WITH_CUDA
#include "optim/adam_kernel.h"
#endif

namespace trainkit {

Adam::Adam(const AdamOptions& options)
    : Optimizer({.lr = options.lr, .weight_decay = options.weight_decay, .capturable = options.capturable}),
      betas_(options.betas),
      eps_(options.eps) {
  detail::OptionProblems problems;
  problems.require(detail::finite_not_negative(options.lr), "lr", "finite and >= 0", options.lr)
      .require(detail::finite_not_negative(options.weight_decay), "weight_decay", "finite and >= 0",
               options.weight_decay)
      .require(false, option_problems());
  TORCH_CHECK_VALUE(problems.empty(), "Adam: ", problems.text());
}

Adam::Adam(const BaseOptions& base, const std::array<double, 2>& betas, double eps)
    : Optimizer(base), betas_(betas), eps_(eps) {}

std::unique_ptr<Optimizer> Adam::create_like() const { return std::make_unique<Adam>(options()); }

AdamOptions Adam::options() const {
  const BaseOptions base = base_options();
  return {
      .lr = base.lr, .betas = betas_, .eps = eps_, .weight_decay = base.weight_decay, .capturable = base.capturable};
}

std::vector<std::pair<const char*, double*>> Adam::hyperparameters() {
  return {{"beta1", &betas_[0]}, {"beta2", &betas_[1]}, {"eps", &eps_}};
}

std::string Adam::option_problems() const {
  return detail::OptionProblems()
      .require(betas_[0] >= 0 && betas_[0] < 1, "betas[0]", "in [0, 1)", betas_[0])
      .require(betas_[1] >= 0 && betas_[1] < 1, "betas[1]", "in [0, 1)", betas_[1])
      .require(detail::finite_not_negative(eps_), "eps", "finite and >= 0", eps_)
      .text();
}

void Adam::apply(const FusedArguments& a) {
  if (apply_by_kernel(a, /*decouples_decay=*/false)) return;
  const auto fused = [&](const auto& lr) {
    at::_fused_adam_(a.params, a.gradients, a.state[0], a.state[1], /*max_exp_avg_sqs=*/{}, a.steps, lr, betas_[0],
                     betas_[1], a.weight_decay, eps_, /*amsgrad=*/false, /*maximize=*/false, /*grad_scale=*/{},
                     a.found_inf);
  };
  a.device_lr.defined() ? fused(a.device_lr) : fused(a.lr);
}

/// Returns false if this build's kernel does not take the tensors.
bool Adam::apply_by_kernel([[maybe_unused]] const FusedArguments& a, [[maybe_unused]] bool decouples_decay) const {
#ifdef TRAINKIT_WITH_CUDA
  for (const at::TensorList tensors : {a.params, a.gradients, at::TensorList(a.state[0]), at::TensorList(a.state[1])}) {
    if (!detail::has_list_kernels(tensors)) return false;
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].strides() != a.params[i].strides()) return false;
    }
  }
  const detail::AdamArguments arguments = {
      .beta1 = static_cast<float>(betas_[0]),
      .beta2 = static_cast<float>(betas_[1]),
      .eps = static_cast<float>(eps_),
      .weight_decay = static_cast<float>(a.weight_decay),
      .lr = static_cast<float>(a.lr),
      .device_lr = a.device_lr.defined() ? a.device_lr.const_data_ptr<float>() : nullptr,
      .found_inf = a.found_inf ? a.found_inf->const_data_ptr<float>() : nullptr,
      .decouples_decay = decouples_decay};
  for (size_t first = 0; first < a.params.size(); first += detail::kMostParameters) {
    detail::AdamList list;
    for (size_t i = first; i < a.params.size() && list.count < detail::kMostParameters; ++i, ++list.count) {
      list.params[list.count] = a.params[i].mutable_data_ptr<float>();
      list.gradients[list.count] = a.gradients[i].const_data_ptr<float>();
      list.exp_avgs[list.count] = a.state[0][i].mutable_data_ptr<float>();
      list.exp_avg_sqs[list.count] = a.state[1][i].mutable_data_ptr<float>();
      list.steps[list.count] = a.steps[i].const_data_ptr<float>();
      list.sizes[list.count] = a.params[i].numel();
    }
    detail::launch_on(a.params.front().device(),
                      [&](void* stream) { return detail::launch_adam(list, arguments, stream); });
  }
  return true;
#else
  return false;
#endif
}

AdamW::AdamW(const AdamWOptions& options)
    : Adam({.lr = options.lr,
            .betas = options.betas,
            .eps = options.eps,
            .weight_decay = options.weight_decay,
            .capturable = options.capturable}) {}

std::unique_ptr<Optimizer> AdamW::create_like() const {
  const AdamOptions mine = options();
  return std::make_unique<AdamW>(AdamWOptions{mine.lr, mine.betas, mine.eps, mine.weight_decay, mine.capturable});
}

void AdamW::apply(const FusedArguments& a) {
  if (apply_by_kernel(a, /*decouples_decay=*/true)) return;
  const auto fused = [&](const auto& lr) {
    at::_fused_adamw_(a.params, a.gradients, a.state[0], a.state[1], /*max_exp_avg_sqs=*/{}, a.steps, lr, betas_[0],
                      betas_[1], a.weight_decay, eps_, /*amsgrad=*/false, /*maximize=*/false, /*grad_scale=*/{},
                      a.found_inf);
  };
  a.device_lr.defined() ? fused(a.device_lr) : fused(a.lr);
}

}  // namespace trainkit
