#include "trainkit/optim/sgd.h"

#include <ATen/ops/_fused_sgd.h>
#include <c10/util/Exception.h>

#include "optim/option_problems.h"

namespace trainkit {

SGD::SGD(const SGDOptions& options)
    : Optimizer({.lr = options.lr, .weight_decay = options.weight_decay, .capturable = options.capturable}),
      momentum_(options.momentum),
      nesterov_(options.nesterov ? 1 : 0) {
  const std::string problems = detail::shared_option_problems(options.lr, options.weight_decay) + option_problems();
  TORCH_CHECK_VALUE(problems.empty(), "SGD:", problems);
}

std::unique_ptr<Optimizer> SGD::create_like() const {
  const BaseOptions base = base_options();
  return std::make_unique<SGD>(SGDOptions{.lr = base.lr,
                                          .momentum = momentum_,
                                          .weight_decay = base.weight_decay,
                                          .nesterov = nesterov_ != 0,
                                          .capturable = base.capturable});
}

std::vector<std::string> SGD::state_names() const {
  if (momentum_ == 0) return {};
  return {"momentum_buffer"};
}

std::vector<std::pair<const char*, double*>> SGD::hyperparameters() {
  return {{"momentum", &momentum_}, {"nesterov", &nesterov_}};
}

std::string SGD::option_problems() const {
  return detail::require_option(momentum_ >= 0 && momentum_ < 1, "momentum", "in [0, 1)", momentum_) +
         detail::require_option(nesterov_ == 0 || nesterov_ == 1, "nesterov", "0 or 1", nesterov_) +
         detail::require_option(nesterov_ == 0 || momentum_ > 0, "momentum", "> 0 with nesterov", momentum_);
}

void SGD::apply(const FusedArguments& a) {
  const auto fused = [&](const auto& lr) {
    at::_fused_sgd_(a.params, a.gradients, momentum_ == 0 ? at::TensorList() : at::TensorList(a.state[0]),
                    a.weight_decay, momentum_, lr, /*dampening=*/0, nesterov_ != 0, /*maximize=*/false,
                    /*is_first_step=*/false, /*grad_scale=*/{}, a.found_inf);
  };
  a.device_lr.defined() ? fused(a.device_lr) : fused(a.lr);
}

}  // namespace trainkit
