#include "trainkit/optim/sgd.h"

#include <ATen/ops/_fused_sgd.h>
#include <c10/util/Exception.h>

#include "core/base/option_problems.h"
#include "optim/in_float.h"

namespace trainkit {

SGD::SGD(const SGDOptions& options)
    : Optimizer({.lr = options.lr, .weight_decay = options.weight_decay, .capturable = options.capturable}),
      momentum_(options.momentum),
      nesterov_(options.nesterov ? 1 : 0) {
  detail::OptionProblems problems;
  problems.require(detail::finite_not_negative(options.lr), "lr", "finite and >= 0", options.lr)
      .require(detail::finite_not_negative(options.weight_decay), "weight_decay", "finite and >= 0",
               options.weight_decay)
      .require(false, option_problems());
  TORCH_CHECK_VALUE(problems.empty(), "SGD: ", problems.text());
}

std::unique_ptr<Optimizer> SGD::create_like() const {
  const BaseOptions base = base_options();
  return std::make_unique<SGD>(SGDOptions{.lr = base.lr,
                                          .momentum = momentum_,
                                          .weight_decay = base.weight_decay,
                                          .nesterov = nesterov_ != 0,
                                          .capturable = base.capturable});
}

std::vector<std::string> SGD::state_names(const ParamGroup&) const {
  if (momentum_ == 0) return {};
  return {"momentum_buffer"};
}

std::vector<std::pair<const char*, double*>> SGD::hyperparameters() {
  return {{"momentum", &momentum_}, {"nesterov", &nesterov_}};
}

std::string SGD::option_problems() const {
  return detail::OptionProblems()
      .require(momentum_ >= 0 && momentum_ < 1, "momentum", "in [0, 1)", momentum_)
      .require(nesterov_ == 0 || nesterov_ == 1, "nesterov", "0 or 1", nesterov_)
      .require(nesterov_ == 0 || momentum_ > 0, "momentum", "> 0 with nesterov", momentum_)
      .text();
}

void SGD::apply(const FusedArguments& a) {
  // 16-bit parameters in float32: PyTorch 2.11's CPU kernel computes most of their elements without storing them.
  detail::in_float(a.params, a.gradients, a.state,
                   [&](at::TensorList params, at::TensorList gradients, const auto& state) {
                     const auto fused = [&](const auto& lr) {
                       at::_fused_sgd_(params, gradients, momentum_ == 0 ? at::TensorList() : at::TensorList(state[0]),
                                       a.weight_decay, momentum_, lr, /*dampening=*/0, nesterov_ != 0,
                                       /*maximize=*/false, /*is_first_step=*/false,
                                       /*grad_scale=*/{}, a.found_inf);
                     };
                     a.device_lr.defined() ? fused(a.device_lr) : fused(a.lr);
                   });
}

}  // namespace trainkit
